"""How a daemon ends: by a signal with 0, by a failed task with 1 and its name, drained in
between."""

import asyncio
import os
import signal
from collections.abc import Callable
from typing import Any

import pytest
import structlog

from common.errors import BatonError, Code
from common.process import lifecycle
from common.process.lifecycle import Tasks


class Daemon:
    """A service whose behaviour each test sets; `order` records what happened."""

    stop_seconds = 0.2

    def __init__(self, on_start: Callable[[Tasks], Any], drain: float = 0.0) -> None:
        self.order: list[str] = []
        self._on_start = on_start
        self._drain = drain

    async def start(self, tasks: Tasks) -> str:
        self.order.append("start")
        await self._on_start(tasks)
        return "ready"

    async def stop(self) -> None:
        await asyncio.sleep(self._drain)
        self.order.append("stop")


def run(daemon: Daemon) -> tuple[int, list[dict[str, Any]]]:
    with structlog.testing.capture_logs() as events:
        code = lifecycle.run(lambda: daemon, structlog.get_logger("test"))
    return code, [dict(event) for event in events]


async def forever() -> None:
    await asyncio.Event().wait()


async def terminate_self() -> None:
    os.kill(os.getpid(), signal.SIGTERM)
    await forever()


async def fail() -> None:
    raise BatonError(Code.ENGINE_FAILED, "the engine died")


async def end() -> None:
    return


def test_a_signal_drains_and_exits_0() -> None:
    async def on_start(tasks: Tasks) -> None:
        tasks.start("suicide", terminate_self())

    daemon = Daemon(on_start)
    code, events = run(daemon)
    assert code == 0
    assert daemon.order == ["start", "stop"]
    assert [e["event"] for e in events] == ["daemon.ready", "daemon.stopping", "daemon.stopped"]


@pytest.mark.parametrize(
    ("work", "ends", "sentence"),
    [
        (fail, False, "task t ended: the engine died"),
        (fail, True, "task t ended: the engine died"),
        (end, False, "task t ended though it must not"),
    ],
)
def test_a_task_that_ends_unexpectedly_ends_the_process_with_its_name(
    work: Callable[[], Any], ends: bool, sentence: str
) -> None:
    async def on_start(tasks: Tasks) -> None:
        tasks.start("t", work(), ends=ends)

    daemon = Daemon(on_start)
    code, events = run(daemon)
    assert code == 1
    assert daemon.order == ["start", "stop"]
    failed = next(e for e in events if e["event"] == "daemon.failed")
    assert failed["sentence"] == sentence


def test_a_failed_start_is_one_line_and_exits_1() -> None:
    async def on_start(_: Tasks) -> None:
        raise BatonError(Code.CONFIG_INVALID, "port 80 is taken")

    code, events = run(Daemon(on_start))
    assert code == 1
    assert [e.get("sentence") for e in events if e["event"] == "daemon.failed"] == [
        "port 80 is taken"
    ]


def test_a_signal_during_start_stops_what_was_started() -> None:
    async def on_start(_: Tasks) -> None:
        await terminate_self()

    daemon = Daemon(on_start)
    code, events = run(daemon)
    assert code == 0
    assert daemon.order == ["start", "stop"]
    assert "daemon.ready" not in [e["event"] for e in events]


def test_a_drain_that_takes_too_long_is_cut_and_named() -> None:
    async def on_start(tasks: Tasks) -> None:
        tasks.start("suicide", terminate_self())

    daemon = Daemon(on_start, drain=30.0)
    code, events = run(daemon)
    assert code == 0
    assert "shutdown.expired" in [e["event"] for e in events]


async def test_tasks_that_ignore_cancel_are_named() -> None:
    release = asyncio.Event()

    async def stubborn() -> None:
        while not release.is_set():
            try:
                await release.wait()
            except asyncio.CancelledError:
                continue

    tasks = Tasks()
    tasks.start("stubborn", stubborn())
    tasks.start("good", forever())
    await asyncio.sleep(0)
    assert await tasks.cancel_all(seconds=0.05) == ["stubborn"]
    release.set()
