"""Daemons are killed while they work; each test has a fleet of its own to break."""

import http.client
import json
import signal
import threading
from collections.abc import Iterator
from typing import Any

import openai
import psutil
import pytest

from tests.rigs.fleet import Fleet, fleet

MODEL = "baton-tiny"
PROMPT = "All happy families are alike. " * 30


@pytest.fixture
def one_pair() -> Iterator[Fleet]:
    with fleet("--engine", "sim") as running:
        yield running.wait_ready()


def stream(running: Fleet, max_tokens: int) -> Iterator[Any]:
    api = openai.OpenAI(base_url=f"{running.url}/v1", api_key="none", max_retries=0, timeout=30)
    return iter(
        api.completions.create(
            model=MODEL,
            prompt=PROMPT,
            max_tokens=max_tokens,
            temperature=0,
            stream=True,
            stream_options={"include_usage": True},
        )
    )


def complete(running: Fleet) -> int:
    connection = http.client.HTTPConnection("127.0.0.1", running.port, timeout=30)
    body = {"model": MODEL, "prompt": PROMPT, "max_tokens": 8}
    connection.request(
        "POST", "/v1/completions", json.dumps(body), {"content-type": "application/json"}
    )
    answer = connection.getresponse()
    answer.read()
    return answer.status


def kill(running: Fleet, name: str) -> int:
    victim = running.children()[name]
    victim.send_signal(signal.SIGKILL)
    return victim.pid


def restarted(running: Fleet, name: str, old_pid: int) -> bool:
    child = running.children().get(name)
    return child is not None and child.pid != old_pid


def text_of(chunks: Iterator[Any]) -> tuple[str, Any]:
    """What a stream says, and its usage."""
    pieces, usage = [], None
    for chunk in chunks:
        pieces += [choice.text for choice in chunk.choices]
        usage = chunk.usage or usage
    return "".join(pieces), usage


def test_the_only_decode_worker_is_waited_for(one_pair: Fleet) -> None:
    undisturbed = text_of(stream(one_pair, 300))
    chunks = stream(one_pair, 300)
    first = next(chunks).choices[0].text
    pid = kill(one_pair, "d0")
    rest, usage = text_of(chunks)
    assert (first + rest, usage) == undisturbed
    assert restarted(one_pair, "d0", pid)


def test_streams_do_not_notice_a_lost_router_and_new_work_waits_for_its_return(
    one_pair: Fleet,
) -> None:
    chunks = stream(one_pair, 150)
    next(chunks)
    pid = kill(one_pair, "r0")
    assert complete(one_pair) == 200
    assert restarted(one_pair, "r0", pid)
    assert text_of(chunks)[1].completion_tokens == 150


def test_a_killed_supervisor_takes_its_fleet_along(one_pair: Fleet) -> None:
    daemons = psutil.Process(one_pair.process.pid).children(recursive=True)
    one_pair.process.kill()
    one_pair.process.wait()
    _, alive = psutil.wait_procs(daemons, timeout=15)
    assert not alive


def test_ctrl_c_lets_a_running_stream_finish(one_pair: Fleet) -> None:
    chunks = stream(one_pair, 120)
    next(chunks)
    daemons = psutil.Process(one_pair.process.pid).children(recursive=True)
    stopper = threading.Thread(target=one_pair.stop)
    stopper.start()
    _, usage = text_of(chunks)
    stopper.join()
    assert usage.completion_tokens == 120
    assert one_pair.process.returncode == 0
    assert not [d for d in daemons if d.is_running()]
    for name in ("g0", "r0", "p0", "d0", "h0"):
        assert "daemon.stopped" in one_pair.log(name)
        assert "Traceback" not in one_pair.log(name)
