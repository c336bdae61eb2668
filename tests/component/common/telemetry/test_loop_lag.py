"""A loop that stands still says what it did meanwhile."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import time
from typing import cast

from common.process.lifecycle import Tasks
from common.telemetry.log import Logger
from common.telemetry.loop_lag import LoopLag


class Told(asyncio.Queue[dict[str, str]]):
    """A logger of which a test can wait for the next warning."""

    def warning(self, event: str, **fields: str) -> None:
        self.put_nowait({"event": event, **fields})


def holds_everything_up(seconds: float) -> None:
    time.sleep(seconds)


async def test_stacks_of_each_standstill_are_logged_with_the_call_that_caused_it() -> None:
    told, tasks = Told(), Tasks()
    lag = LoopLag(cast("Logger", told), late_s=0.2)
    tasks.start("loop-lag", lag.run())
    for _ in range(2):
        await asyncio.sleep(0)  # the alarm is set
        holds_everything_up(1.0)
        log = await asyncio.wait_for(told.get(), 10)
        assert log["event"] == "loop.stood_still"
        assert log["stacks"].count("holds_everything_up") == 1
    (metric,) = lag.collect()
    assert metric.samples[0].value >= 0.2
    assert told.empty()
    await tasks.cancel_all()


FORKS = """
import asyncio, faulthandler, os, sys
from common.telemetry.log import configure
from common.telemetry.loop_lag import LoopLag

async def main():
    task = asyncio.get_running_loop().create_task(LoopLag(configure("decode", "d0", "info")).run())
    await asyncio.sleep(0)
    child = os.fork()
    if not child:
        sys.exit(7)
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))

asyncio.run(main())
"""


def test_a_process_that_is_forked_off_a_daemon_can_end() -> None:
    """With the alarm still set it waits for ever."""
    command = [sys.executable, "-c", FORKS]
    forked = subprocess.run(command, capture_output=True, text=True, timeout=30, check=True)
    assert forked.stdout == "7\n"
