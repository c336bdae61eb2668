"""Workers that are forked off a process are children as others: their parent, their end, their
state. What happens when that process is slow, hangs, dies or cannot be started."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import psutil
import pytest

from common.process.lifecycle import Tasks
from services.up import fork_client
from services.up.fork_client import ForkedProcess, ForkServer, reap_orphans

LIGHT = (sys.executable, "-m", "tests.component.services.up.light_fork_server")
WAIT_SECONDS = 20.0


class Supervisor:
    """In place of `baton up`. `said` has what the fork server's client told it."""

    def __init__(self, run_dir: Path, command: Sequence[str], environment: dict[str, str]) -> None:
        self.said: list[str] = []
        self.log = run_dir / "worker.log"
        self.server = ForkServer(environment, run_dir, self.said.append, command)
        self._before = set(psutil.Process().children())

    def children(self) -> list[psutil.Process]:
        """Of this process, since the test began."""
        return [child for child in psutil.Process().children() if child not in self._before]

    async def fork(self, *words: str, **environment: str) -> ForkedProcess | None:
        with self.log.open("ab") as log:
            given = os.environ | environment
            return await asyncio.wait_for(self.server.fork(words, given, log), WAIT_SECONDS)

    async def worker(self, *words: str, **environment: str) -> ForkedProcess:
        forked = await self.fork(*words, **environment)
        assert forked is not None, self.said
        return forked

    async def told(self, **environment: str) -> dict[str, Any]:
        worker = await self.worker("tell", **environment)
        assert await worker.wait() == 0, self.log.read_text()
        state: dict[str, Any] = json.loads(self.log.read_text().splitlines()[-1])
        return state

    async def waiting(self) -> ForkedProcess:
        """One that has begun its work."""
        before = self.log.read_text().count("waiting") if self.log.exists() else 0
        worker = await self.worker("wait", "--config", str(self.log), "--name", "d0")
        await until(lambda: self.log.read_text().count("waiting") > before)
        return worker


async def until(true: Callable[[], bool]) -> None:
    """A condition that has no event to wait for."""
    deadline = time.monotonic() + WAIT_SECONDS
    while not true():
        assert time.monotonic() < deadline
        await asyncio.sleep(0.01)


@asynccontextmanager
async def supervisor(
    run_dir: Path, command: Sequence[str] = LIGHT, **environment: str
) -> AsyncIterator[Supervisor]:
    made, tasks = Supervisor(run_dir, command, os.environ | environment), Tasks()
    tasks.start("fork-server", made.server.run())
    try:
        yield made
    finally:
        made.server.close()
        assert not await tasks.cancel_all()
        await until(lambda: not made.children())


@pytest.fixture(autouse=True)
def short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fork_client, "PAUSE_SECONDS", 0.02)


async def test_a_worker_is_as_if_this_process_had_started_it(tmp_path: Path) -> None:
    given = {"REMOVED_BY_IMPORT": "1", "WORKERS": "own"}
    async with supervisor(tmp_path, REMOVED_BY_IMPORT="1") as up:
        told = await up.told(**given)
        again = await up.told(**given)
    assert told["parent"] == os.getpid()
    assert told["leads_session"]
    log = str(up.log)
    assert told["descriptors"] == {"0": "/dev/null", "1": log, "2": log}
    expected = os.environ | {"WORKERS": "own", "SET_BY_IMPORT": "1"}
    assert told["environment"] == dict(expected), "and none of the fork server's own"
    assert told["words"] == ["tell"]
    assert told["shares"], "what it has in common with the others is not collected"
    assert told["handlers"]["SIGTERM"] == str(signal.SIG_DFL)
    assert told["blocked"] == []
    one, other = told["random"], again["random"]
    assert one[0] != other[0]
    assert one[1] != other[1]


async def test_its_command_line_is_that_of_a_worker(tmp_path: Path) -> None:
    async with supervisor(tmp_path) as up:
        worker = await up.waiting()
        shown = psutil.Process(worker.pid).cmdline()
        worker.send_signal(signal.SIGKILL)
        await worker.wait()
    words = ["wait", "--config", str(up.log), "--name", "d0"]
    assert shown == [sys.executable, "-m", "services.cli", *words]


async def test_exit_statuses_and_signals_are_told(tmp_path: Path) -> None:
    async with supervisor(tmp_path) as up:
        await (await up.worker("end")).wait()
        before = psutil.Process().num_fds()
        ended = await up.worker("end", "5")
        assert ended.returncode is None
        assert await ended.wait() == 5
        with pytest.raises(ProcessLookupError):
            ended.send_signal(signal.SIGTERM)
        raised = await up.worker("raise", "unheard-of")
        assert await raised.wait() == 1
        assert "KeyError: 'unheard-of'" in up.log.read_text()
        for signum in (signal.SIGKILL, signal.SIGTERM):
            killed = await up.waiting()
            killed.send_signal(signum)
            assert await killed.wait() == -signum
        assert psutil.Process().num_fds() == before
    assert up.said == []


async def test_workers_that_are_asked_for_at_once_all_come(tmp_path: Path) -> None:
    async with supervisor(tmp_path) as up:
        importing = [up.server.is_importing]
        workers = await asyncio.gather(*(up.worker("end", str(n)) for n in range(8)))
        importing.append(up.server.is_importing)
        assert importing == [True, False]
        assert await asyncio.gather(*(worker.wait() for worker in workers)) == list(range(8))
        assert len(up.children()) == 1


async def test_one_that_was_killed_is_told_of_once_and_comes_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with supervisor(tmp_path) as up:
        await (await up.worker("end")).wait()
        (server,) = up.children()
        worker = await up.waiting()
        monkeypatch.setattr(fork_client, "PAUSE_SECONDS", 0.4)
        server.kill()
        await until(lambda: bool(up.said))
        assert await up.fork("tell") is None, "it is started in the plain way meanwhile"
        assert not up.server.is_importing
        await until(lambda: up.server.is_importing)
        assert await (await up.worker("end", "3")).wait() == 3
        assert worker.returncode is None, "what was forked off the first one goes on"
        worker.send_signal(signal.SIGKILL)
        await worker.wait()
    assert len(up.said) == 1
    assert "ended by signal 9" in up.said[0]


async def test_one_that_greeted_comes_again_however_often_it_is_killed(tmp_path: Path) -> None:
    async with supervisor(tmp_path) as up:
        for times in range(1, fork_client.FAILURES_MAX + 2):
            await (await up.worker("end")).wait()
            up.children()[0].kill()
            await until(lambda: len(up.said) == times)  # noqa: B023 - it ends before the next turn
            await until(lambda: up.server.is_importing)


async def test_one_that_hangs_is_replaced_and_leaves_no_worker(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fork_client, "ANSWER_SECONDS", 0.1)
    async with supervisor(tmp_path) as up:
        assert await (await up.worker("end")).wait() == 0
        up.children()[0].suspend()
        assert await up.fork("wait", "--name", "lost") is None
        monkeypatch.undo()
        await until(lambda: bool(up.said))
        await until(lambda: up.server.is_importing)
        assert await (await up.worker("end", "3")).wait() == 3
        assert len(up.children()) == 1, "the new fork server alone"
    assert up.said == [
        "was ended because it did not answer; workers import vLLM themselves meanwhile"
    ]


async def test_one_that_never_greets_is_given_up_after_three_times(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fork_client, "START_SECONDS", 0.05)
    async with supervisor(tmp_path, (sys.executable, "-c", "input()")) as up:
        assert await up.fork("tell") is None
        await until(lambda: len(up.said) == fork_client.FAILURES_MAX)
        assert await up.fork("tell") is None
        assert up.children() == []
    assert "0.05 s to import vLLM" in up.said[0]


async def test_one_that_fails_at_once_names_its_log(tmp_path: Path) -> None:
    async with supervisor(tmp_path, (sys.executable, "-c", "import no_such")) as up:
        assert await up.fork("tell") is None
        await until(lambda: len(up.said) == fork_client.FAILURES_MAX)
    log = tmp_path / "logs" / "fork-server.log"
    assert f"ended with status 1 ({log})" in up.said[0]
    assert "no_such" in log.read_text()


async def test_one_that_cannot_be_started_is_told_of_three_times(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fork_client, "PAUSE_SECONDS", 0.001)
    async with supervisor(tmp_path, ("/no/such/program",)) as up:
        assert await up.fork("tell") is None
        await until(lambda: len(up.said) == fork_client.FAILURES_MAX)
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.5):
                await until(lambda: up.server.is_importing)  # for a fourth time
    assert len(up.said) == fork_client.FAILURES_MAX
    assert up.said[0].startswith("cannot be started: No such file")


async def test_where_vllm_does_not_compute_on_the_cpu_nothing_is_forked(tmp_path: Path) -> None:
    async with supervisor(tmp_path, UNFIT="1") as up:
        assert await up.fork("tell") is None
        assert await up.fork("tell") is None
        assert up.children() == []
    assert up.said == []


async def test_a_worker_that_cannot_be_forked_starts_in_the_plain_way(tmp_path: Path) -> None:
    """The fork server has no process left, and goes on."""
    program = (
        "import socket; from common.process.fork_request import GREETING, PID\n"
        "line = socket.socket(fileno=0); line.send(GREETING)\n"
        "while line.recv(1): line.send(PID.pack(0))"
    )
    async with supervisor(tmp_path, (sys.executable, "-c", program)) as up:
        assert await up.fork("tell") is None
        assert await up.fork("tell") is None
        assert len(up.children()) == 1
    assert up.said == []


async def test_a_process_of_another_is_not_taken_for_a_worker(tmp_path: Path) -> None:
    program = (
        "import socket; from common.process.fork_request import GREETING, PID\n"
        "line = socket.socket(fileno=0); line.send(GREETING)\n"
        "while line.recv(1): line.send(PID.pack(1))"
    )
    async with supervisor(tmp_path, (sys.executable, "-c", program)) as up:
        assert await up.fork("tell") is None
        await until(lambda: bool(up.said))


async def test_one_that_dies_when_it_is_asked_costs_a_plain_start_alone(tmp_path: Path) -> None:
    program = (
        "import socket; from common.process.fork_request import GREETING\n"
        "line = socket.socket(fileno=0); line.send(GREETING); line.recv(1)"
    )
    async with supervisor(tmp_path, (sys.executable, "-c", program)) as up:
        assert await up.fork("tell") is None
        await until(lambda: bool(up.said))


async def test_orphans_are_looked_for_with_each_worker(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spared: list[set[int]] = []
    monkeypatch.setattr(fork_client, "reap_orphans", spared.append)
    async with supervisor(tmp_path) as up:
        first, second = await up.waiting(), await up.waiting()
        for worker in (first, second):
            worker.send_signal(signal.SIGKILL)
            await worker.wait()
        third = await up.worker("end")
        await third.wait()
    assert spared == [{first.pid}, {first.pid, second.pid}, {third.pid}]


async def test_other_libraries_need_another_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    installed = tmp_path / "installed.py"
    installed.touch()
    monkeypatch.setattr(fork_client, "LIBRARIES", ("installed",))
    monkeypatch.syspath_prepend(tmp_path)
    async with supervisor(tmp_path) as up:
        assert await (await up.worker("end", "3")).wait() == 3
        installed.replace(tmp_path / "old.py")
        installed.touch()
        assert await up.fork("tell") is None
        await until(lambda: bool(up.said))
        await until(lambda: up.server.is_importing)
        assert await (await up.worker("end", "3")).wait() == 3
    assert "other libraries" in up.said[0]


async def test_nothing_is_forked_once_it_is_closed(tmp_path: Path) -> None:
    async with supervisor(tmp_path) as up:
        await (await up.worker("end")).wait()
        up.server.close()
        await until(lambda: not up.children())
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.1):
                await up.fork("tell")
    assert up.said == []


def child_that_ends(exit_code: int) -> int:
    """It has ended by then, and nobody has waited for it."""
    command = [sys.executable, "-c", f"raise SystemExit({exit_code})"]
    pid = os.posix_spawn(sys.executable, command, os.environ)
    os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
    return pid


async def test_orphans_that_were_adopted_are_waited_for(tmp_path: Path) -> None:
    """And children that someone else waits for are left alone."""
    program = f"import os; os.fork() or os.fork() or open({str(tmp_path / 'ran')!r}, 'w')"
    before = set(psutil.Process().children())
    own = await asyncio.create_subprocess_exec(sys.executable, "-c", "", start_new_session=True)
    worker = ForkedProcess(child_that_ends(4))
    reap_orphans([worker.pid])  # before the loop has heard of its end
    with fork_client.adopting():
        parent = await asyncio.create_subprocess_exec(sys.executable, "-c", program)
        await parent.wait()
        await until((tmp_path / "ran").exists)

    def orphans() -> set[psutil.Process]:
        reap_orphans([worker.pid])
        found = set(psutil.Process().children()) - before
        return {child for child in found if child.pid not in (own.pid, worker.pid)}

    await until(lambda: not orphans())
    assert await own.wait() == 0
    assert await worker.wait() == 4
