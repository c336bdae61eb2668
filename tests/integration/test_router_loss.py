"""A router dies under load: no stream fails, no submit is lost, nothing is placed twice."""

import asyncio
import re
import signal
from collections.abc import Awaitable, Callable

import pytest

from tests.rigs.fleet import Fleet, fleet, wait_until
from tests.rigs.load import Ask, Load, faults_of

pytestmark = pytest.mark.timeout(240)
SIM = ("--engine", "sim", "--prefill", "2", "--decode", "2")
STEP_MS = 50
SLOW = {
    "BATON_ENGINE__SIM__DECODE_STEP_MS": str(STEP_MS),
    "BATON_GATEWAY__ROUTER_WAIT_MS": "30000",
}


async def under_load(
    running: Fleet, fault: Callable[[Load], Awaitable[None]], seconds: float = 4.0
) -> None:
    """Streams of so many seconds, of which every one ends as it must."""
    ask = Ask(prompt_tokens=(600, 600), max_tokens=round(seconds * 1000 / STEP_MS))
    load = Load(running.url, rate=28 / seconds, ask=ask)
    async with asyncio.TaskGroup() as group:
        done = group.create_task(load.run())
        await until(lambda: len(load.running) >= 12)
        await fault(load)
        started = load.started
        await until(lambda: load.started >= started + 20)
        load.stop()
    assert faults_of(done.result()) == []
    assert not any(answer.refused for answer in load.answers)


async def until(true: Callable[[], bool], seconds: float = 30.0) -> None:
    """As `wait_until`, beside running streams."""
    await asyncio.to_thread(wait_until, "streams are where they should be", true, seconds)


def total(running: Fleet, name: str, *ctl: str) -> int:
    count: int = running.ctl("status", *ctl)["totals"][name]
    return count


def test_a_killed_router_fails_no_stream_loses_no_submit_and_finds_what_runs() -> None:
    async def kill(load: Load) -> None:
        victim = running.children()["r0"]
        victim.send_signal(signal.SIGKILL)
        await until(lambda: not victim.is_running() or victim.status() == "zombie")

    with fleet(*SIM, env=SLOW) as running:
        running.wait_ready()
        first = running.ctl("status")["incarnation"]
        asyncio.run(under_load(running, kill, seconds=10.0))  # longer than a start takes
        status = running.ctl("status")
        assert status["incarnation"] != first, "it was really killed"
        assert total(running, "adopted") >= 5, "streams that ran on were found on their workers"
        assert total(running, "failed") == 0
        waited = re.findall(r"placing begins ([\d.]+) s after the start: 4", running.log("r0"))
        assert waited, "the second router knew all four workers before it placed"
        assert float(waited[-1]) <= 2.1
        assert running.ctl("requests") == []
        assert all(w["kv_tokens_promised"] == 0 for w in running.ctl("workers"))
