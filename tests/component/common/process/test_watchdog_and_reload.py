"""Watchdog beats that stop with the work, and fleet files that are read again or refused whole."""

import asyncio
import os
import signal
import socket
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import structlog

from common.config import Config, from_mapping
from common.config.live import compare
from common.errors import ConfigError
from common.process import lifecycle
from common.process.lifecycle import Tasks
from common.process.notify import Notifier
from common.process.watchdog_and_reload import Source, WatchdogAndReload

WATCHDOG_USEC = 30_000


@pytest.fixture
def supervisor(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[socket.socket]:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as channel:
        channel.bind(str(tmp_path / "notify"))
        channel.settimeout(5)
        monkeypatch.setenv("NOTIFY_SOCKET", channel.getsockname())
        yield channel


def states(channel: socket.socket) -> list[str]:
    """The first line of all that was said and not yet heard."""
    channel.setblocking(False)
    said = []
    while True:
        try:
            said.append(channel.recv(4096).decode().splitlines()[0])
        except BlockingIOError:
            return said


@dataclass
class Daemon:
    """`work` runs as its one task."""

    work: Callable[[Tasks], Any]
    stop_seconds: float = 1.0

    async def start(self, tasks: Tasks) -> str:
        tasks.start("work", self.work(tasks), ends=True)
        return "at work"

    async def stop(self) -> None: ...


def run(work: Callable[[Tasks], Any], source: Source | None = None) -> list[dict[str, Any]]:
    with structlog.testing.capture_logs() as events:
        code = lifecycle.run(lambda: Daemon(work), structlog.get_logger("test"), source)
    assert code == 0
    return [dict(event) for event in events]


async def until(true: Callable[[], bool]) -> None:
    async with asyncio.timeout(10):
        while not true():  # noqa: ASYNC110 - what is waited for has no event
            await asyncio.sleep(0.005)


def leave() -> None:
    os.kill(os.getpid(), signal.SIGTERM)


def test_a_daemon_says_ready_beats_and_says_that_it_stops(
    supervisor: socket.socket, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WATCHDOG_USEC", str(WATCHDOG_USEC))
    said: list[str] = []

    def three_beats() -> bool:
        said.extend(states(supervisor))
        return said.count("WATCHDOG=1") >= 3

    async def work(_: Tasks) -> None:
        await until(three_beats)
        leave()

    run(work)
    said += states(supervisor)
    assert said[0] == "READY=1"
    assert said[-1] == "STOPPING=1"
    assert set(said[1:-1]) == {"WATCHDOG=1"}


def test_a_service_whose_work_stands_still_sends_no_beat_and_says_so_once(
    supervisor: socket.socket, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WATCHDOG_USEC", str(WATCHDOG_USEC))
    asked = 0
    said: list[str] = []

    def stuck() -> bool:
        nonlocal asked
        asked += 1
        return asked > 4

    async def work(tasks: Tasks) -> None:
        tasks.watchdog_and_reload.beat_while(stuck)
        await until(lambda: asked >= 4)
        said.extend(states(supervisor))
        await until(lambda: "WATCHDOG=1" in states(supervisor))
        leave()

    events = run(work)
    assert [state for state in said if state == "WATCHDOG=1"] == []
    assert [e["event"] for e in events].count("watchdog.withheld") == 1


def test_no_beats_are_sent_where_nobody_waits_for_them(supervisor: socket.socket) -> None:
    async def work(_: Tasks) -> None:
        await asyncio.sleep(0)
        leave()

    run(work)
    assert states(supervisor) == ["READY=1", "STOPPING=1"]


def config(**router: object) -> Config:
    return from_mapping({"router": router, "gateway": {"port": 8000}})


def source(read: Callable[[], Config]) -> Source:
    return Source(config(max_queue=1), read, ("fleet", "router"))


def test_sighup_applies_the_live_keys_and_names_the_others(supervisor: socket.socket) -> None:
    applied: list[tuple[Config, tuple[str, ...]]] = []

    async def work(tasks: Tasks) -> None:
        await asyncio.sleep(0)
        live = frozenset({"router.max_queue"})
        tasks.watchdog_and_reload.on_reload(
            live, lambda config, keys: applied.append((config, keys))
        )
        os.kill(os.getpid(), signal.SIGHUP)
        await until(lambda: bool(applied))
        leave()

    new = from_mapping({"router": {"max_queue": 2, "history": 9}, "gateway": {"port": 9}})
    events = run(work, source(lambda: new))
    assert applied == [(new, ("router.max_queue",))]
    reloaded = next(e for e in events if e["event"] == "config.reloaded")
    assert reloaded["sentence"] == "router.max_queue; after a restart: router.history"
    assert states(supervisor) == ["READY=1", "RELOADING=1", "READY=1", "STOPPING=1"]


def test_a_file_that_cannot_be_used_changes_nothing_and_ends_nothing() -> None:
    seen: list[str] = []

    def broken() -> Config:
        seen.append("read")
        raise ConfigError("router.max_queue", "expected int")

    async def work(tasks: Tasks) -> None:
        await asyncio.sleep(0)
        tasks.watchdog_and_reload.on_reload(
            frozenset({"router.max_queue"}), lambda *_: seen.append("applied")
        )
        os.kill(os.getpid(), signal.SIGHUP)
        await until(lambda: bool(seen))
        leave()

    events = run(work, source(broken))
    assert seen == ["read"]
    refused = next(e for e in events if e["event"] == "config.refused")
    assert refused["sentence"] == "router.max_queue: expected int; nothing was changed"


def test_what_waits_for_a_restart_is_named_at_every_reading() -> None:
    watchdog_and_reload = WatchdogAndReload(
        Notifier({}), structlog.get_logger("test"), source(lambda: config(max_queue=2, history=9))
    )
    watchdog_and_reload.on_reload(frozenset({"router.max_queue"}), lambda *_: None)
    assert watchdog_and_reload.reload().applied == ("router.max_queue",)
    again = watchdog_and_reload.reload()
    assert again.applied == ()
    assert again.needs_restart == ("router.history",)
    assert again.sentence == "nothing to change; after a restart: router.history"


def test_a_daemon_has_no_word_on_keys_of_others() -> None:
    before: dict[str, object] = {"gateway.port": 1, "router.control": "", "prefill.p0.kv.port": 1}
    after: dict[str, object] = {"gateway.port": 2, "router.control": "x", "decode.d0.kv.port": 1}
    reading = compare(before, after, live=frozenset(), sections=("router.control", "prefill.p0"))
    assert reading.needs_restart == ("prefill.p0.kv.port", "router.control")
