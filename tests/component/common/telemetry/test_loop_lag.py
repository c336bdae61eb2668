"""A loop that stands still says what it did meanwhile."""

from __future__ import annotations

import asyncio
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
        await asyncio.sleep(0)  # it has begun to look
        holds_everything_up(1.0)
        log = await asyncio.wait_for(told.get(), 10)
        assert log["event"] == "loop.stood_still"
        assert log["stacks"].count("holds_everything_up") == 1
    (metric,) = lag.collect()
    assert metric.samples[0].value >= 0.2
    assert told.empty()
    await tasks.cancel_all()
