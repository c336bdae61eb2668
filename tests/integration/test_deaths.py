"""Each daemon is killed in turn; the router finds it by its closed connection, not by a timer."""

import signal
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import openai
import pytest

from tests.rigs.fleet import Fleet, fleet, wait_until

PROMPT = "All happy families are alike. " * 30
FOUND = {
    "p0": "prefill worker p0 was lost: its connection closed",
    "d0": "decode worker d0 was lost: its connection closed",
    "g0": "gateway g0 is out of reach: its connection closed",
}


def noted(running: Fleet, sentence: str) -> bool:
    return sentence in running.log("r0")


def states(running: Fleet) -> dict[str, str]:
    return {worker["name"]: worker["state"] for worker in running.ctl("workers")}


def completed_tokens(running: Fleet) -> int:
    """The tokens of one request, which waits for the lost worker's successor."""
    with openai.OpenAI(
        base_url=f"{running.url}/v1", api_key="none", max_retries=0, timeout=30
    ) as api:
        answer = api.completions.create(model="baton-tiny", prompt=PROMPT, max_tokens=8)
    assert answer.usage is not None
    return answer.usage.completion_tokens


@pytest.mark.timeout(180)
def test_a_killed_daemon_is_found_by_its_closed_connection() -> None:
    with fleet("--engine", "sim") as running, ThreadPoolExecutor(1) as pool:
        running.wait_ready()
        for name, sentence in FOUND.items():
            victim = running.children()[name]
            victim.send_signal(signal.SIGKILL)
            asked = pool.submit(completed_tokens, running) if name == "p0" else None
            wait_until(f"{name} is missed", partial(noted, running, sentence), 2.5)
            if asked is not None:
                assert asked.result() == 8, "a lost prefill worker costs no request"
        wait_until(
            "both workers are ready again",
            lambda: states(running) == {"p0": "ready", "d0": "ready"},
            60,
        )
        log = running.log("r0")
        assert "silent for" not in log, "a timer saw it too"
        assert "worker.ejected" not in log
