"""How one daemon is started: where its log goes, and which are forked off the fork server."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO

import pytest

from common import config as configuration
from common.errors import BatonError
from common.messages import Role
from services.up.child import ChildProcess
from services.up.fork_client import ForkedProcess, ForkServer
from services.up.plan import Child, library_environment


@pytest.mark.parametrize("trap", ["logs", "logs/r0.log"])
async def test_a_log_that_is_a_link_is_named_and_nothing_is_started(
    tmp_path: Path, trap: str
) -> None:
    elsewhere = tmp_path / "elsewhere"
    if trap == "logs":
        elsewhere.mkdir()
    else:
        elsewhere.write_text("precious")
        (tmp_path / "logs").mkdir(mode=0o750)
    (tmp_path / trap).symlink_to(elsewhere)
    process = ChildProcess(
        Child(Role.ROUTER, "r0"),
        tmp_path / "fleet.toml",
        tmp_path,
        on_status=lambda _: None,
        on_ready=lambda: None,
        on_beat=lambda: None,
        watchdog_seconds=0.0,
    )
    try:
        with pytest.raises(BatonError) as refused:
            await process.spawn()
        assert not process.running
    finally:
        process.close()
    assert refused.value.message.startswith(f"cannot start r0: {tmp_path / trap}: ")
    assert "symbolic link" in refused.value.message
    assert elsewhere.is_dir() or elsewhere.read_text() == "precious"


FLEET = """
[fleet]
run_dir = "{run_dir}"
[engine]
kind = "{kind}"
threads = {threads}
[decode.d0]
"""


@pytest.fixture(autouse=True)
def _threads_are_for_the_file_to_say(monkeypatch: pytest.MonkeyPatch) -> None:
    """An engine that another test started left its own number in the environment, which goes before
    that of a file."""
    for name in ("OMP_NUM_THREADS", "NUMBA_NUM_THREADS"):
        monkeypatch.delenv(name, raising=False)


def waiting_child() -> int:
    command = [sys.executable, "-c", "import signal; signal.pause()"]
    return os.posix_spawn(sys.executable, command, os.environ)


class StubServer(ForkServer):
    """Never runs; `asked` has the arguments of each worker."""

    def __init__(self, environment: dict[str, str], run_dir: Path, forks: bool) -> None:
        super().__init__(environment, run_dir, print)
        self.asked: list[list[str]] = []
        self.given: dict[str, str] = {}
        self.forked: ForkedProcess | None = None
        self._forks = forks

    async def fork(
        self, arguments: Sequence[str], environment: Mapping[str, str], log: IO[bytes]
    ) -> ForkedProcess | None:
        self.asked.append(list(arguments))
        self.given = dict(environment)
        log.write(b"asked\n")
        if self._forks:
            self.forked = ForkedProcess(waiting_child())
        return self.forked


async def started(
    tmp_path: Path, child: Child, kind: str = "vllm", threads: int = 1, *, forks: bool = False
) -> tuple[StubServer, list[str]]:
    """What was asked of the fork server, which imported for one thread, and what the child said.
    It is killed."""
    path = tmp_path / "fleet.toml"
    path.write_text(FLEET.format(run_dir=tmp_path, kind="vllm", threads=1))
    worker = Child(Role.DECODE, "d0")
    environment = library_environment(configuration.load(path), worker, os.environ)
    assert environment is not None
    path.write_text(FLEET.format(run_dir=tmp_path, kind=kind, threads=threads))
    server, said = StubServer(environment, tmp_path, forks), list[str]()
    process = ChildProcess(
        child,
        path,
        tmp_path,
        on_status=said.append,
        on_ready=lambda: None,
        on_beat=lambda: None,
        watchdog_seconds=7.0,
        fork_server=server,
    )
    try:
        await process.spawn()
        assert process.running
        if server.forked is not None:
            assert process.pid == server.forked.pid
        process.kill()
        assert await process.wait() == -signal.SIGKILL
    finally:
        process.close()
    return server, said


async def test_a_worker_asks_the_fork_server_first(tmp_path: Path) -> None:
    server, said = await started(tmp_path, Child(Role.DECODE, "d0"))
    path = str(tmp_path / "fleet.toml")
    assert server.asked == [["decode", "--config", path, "--name", "d0"]]
    assert server.given["NOTIFY_SOCKET"] == str(tmp_path / "d0.notify")
    assert server.given["BATON_SUPERVISOR_PID"] == str(os.getpid())
    assert server.given["WATCHDOG_USEC"] == "7000000"
    assert said == ["starting", "importing vLLM"]
    assert (tmp_path / "logs" / "d0.log").read_text().startswith("asked")


async def test_a_worker_that_was_forked_is_not_started_once_more(tmp_path: Path) -> None:
    server, _ = await started(tmp_path, Child(Role.DECODE, "d0"), forks=True)
    assert server.forked is not None
    assert server.forked.returncode == -signal.SIGKILL


@pytest.mark.parametrize(
    ("child", "kind", "threads"),
    [
        (Child(Role.DECODE, "d0"), "vllm", 2),
        (Child(Role.DECODE, "d0"), "sim", 1),
        (Child(Role.DECODE, "d0", {"CUDA_VISIBLE_DEVICES": "0"}), "vllm", 1),
        (Child(Role.DECODE, "d9"), "vllm", 1),
        (Child(Role.ROUTER, "r0"), "vllm", 1),
    ],
    ids=["other-threads", "simulated", "with-a-gpu", "not-in-the-file", "no-worker"],
)
async def test_one_that_does_not_import_alike_is_started_in_the_plain_way(
    tmp_path: Path, child: Child, kind: str, threads: int
) -> None:
    """By the fleet file as it is when the child is started."""
    server, said = await started(tmp_path, child, kind, threads)
    assert server.asked == []
    assert said == ["starting"]
