"""Real vLLM workers of `baton up` are forked off one process: which, what they do, and what is left
when that process, one of them, or `baton up` dies."""

from __future__ import annotations

import http.client
import json
import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import psutil
import pytest

from loadtest.ports import free_port
from tests.rigs.fleet import Fleet, fleet, wait_until

pytestmark = pytest.mark.timeout(300)

CONFIG = """
[fleet]
run_dir = "{folder}/run"
[engine]
threads = 1
[router]
mode = "replicated"
[gateway]
port = {port}
[health]
port = {health_port}
[decode.d0]
[decode.d1]
[decode.d2.engine]
threads = 2
"""
WAIT_SECONDS = 90.0


@contextmanager
def forked_and_plain(folder: Path) -> Iterator[Fleet]:
    """Two workers whose libraries have the same environment, d0 and d1, and d2 of another."""
    file, port = folder / "fleet.toml", free_port()
    file.write_text(CONFIG.format(folder=folder, port=port, health_port=free_port()))
    with pytest.MonkeyPatch.context() as environment:
        environment.delenv("OMP_NUM_THREADS", raising=False)  # it goes before `threads`
        with fleet("--mode", "replicated", "--config", str(file)) as running:
            running.run_dir, running.port = folder / "run", port
            yield running.wait_ready()


@pytest.fixture(scope="module")
def workers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    with forked_and_plain(tmp_path_factory.mktemp("forked")) as running:
        yield running


def fork_server(running: Fleet) -> psutil.Process | None:
    for child in psutil.Process(running.process.pid).children():
        with suppress(psutil.NoSuchProcess):  # it has just died
            if child.cmdline()[-1:] == ["services.fork_server"]:
                return child
    return None


def is_forked(worker: psutil.Process) -> bool:
    """What sets its command line makes one string of it."""
    return Path(f"/proc/{worker.pid}/cmdline").read_bytes().count(b"\0") == 1


def send(running: Fleet, name: str, signum: signal.Signals) -> psutil.Process:
    """Returns the one that is started in the place of this worker, once it is ready."""
    before = running.children()[name]
    before.send_signal(signum)

    def ready() -> bool:
        rows = {row["name"]: row for row in running.ctl("workers")}
        return bool(rows[name]["pid"] != before.pid and rows[name]["state"] == "ready")

    wait_until(f"{name} is back", ready, WAIT_SECONDS)
    return running.children()[name]


def complete(running: Fleet) -> str:
    connection = http.client.HTTPConnection("127.0.0.1", running.port, timeout=60)
    body = {"model": "baton-tiny", "prompt": "One two three", "max_tokens": 16, "temperature": 0}
    head = {"content-type": "application/json"}
    connection.request("POST", "/v1/completions", json.dumps(body), head)
    answer = connection.getresponse()
    told = json.loads(answer.read())
    assert answer.status == 200, told
    return str(told["choices"][0]["text"])


def test_workers_that_import_alike_are_forked_and_the_other_is_not(workers: Fleet) -> None:
    found = workers.children()
    assert {name: is_forked(found[name]) for name in ("d0", "d1", "d2")} == {
        "d0": True,
        "d1": True,
        "d2": False,
    }
    server = fork_server(workers)
    assert server is not None
    assert server.children() == []
    assert all(os.getsid(found[name].pid) == found[name].pid for name in ("d0", "d1", "d2"))
    lines = [line for line in workers.lines if line.endswith(": importing vLLM")]
    assert sorted(line.split()[-3] for line in lines) == ["d0:", "d1:", "d2:"], lines


@pytest.mark.long
def test_a_killed_worker_is_forked_again_and_answers_alike(workers: Fleet) -> None:
    before = complete(workers)
    printed = len(workers.lines)
    assert is_forked(send(workers, "d1", signal.SIGKILL))
    workers.wait_for_line(r"d1: was killed by signal 9; starting it again")
    assert not [line for line in workers.lines[printed:] if "importing vLLM" in line]
    assert {complete(workers) for _ in range(6)} == {before}


def test_a_worker_is_terminated_as_any_other(workers: Fleet) -> None:
    assert is_forked(send(workers, "d1", signal.SIGTERM))
    workers.wait_for_line(r"d1: exited with status 0")


@pytest.mark.long
def test_a_killed_fork_server_comes_again_and_harms_no_worker(workers: Fleet) -> None:
    before = {name: child.pid for name, child in workers.children().items()}
    server = fork_server(workers)
    assert server is not None
    server.kill()
    workers.wait_for_line(r"fork-server: ended by signal 9")
    send(workers, "d0", signal.SIGKILL)
    assert {name: child.pid for name, child in workers.children().items() if name != "d0"} == {
        name: pid for name, pid in before.items() if name != "d0"
    }
    wait_until("there is another", lambda: fork_server(workers) is not None, WAIT_SECONDS)
    assert is_forked(send(workers, "d1", signal.SIGKILL))
    assert complete(workers)


@pytest.mark.long
def test_a_killed_supervisor_takes_all_of_it_along(workers: Fleet) -> None:
    processes = psutil.Process(workers.process.pid).children(recursive=True)
    assert fork_server(workers) in processes
    workers.process.kill()
    workers.process.wait()
    _, alive = psutil.wait_procs(processes, timeout=30)
    assert not alive
