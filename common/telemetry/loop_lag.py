"""How late a daemon's event loop is, and what its threads were doing when it stood still.

Theory of operation: the loop sets an alarm each time it has slept, before it sleeps again. If the
next alarm is not set in time, a thread of `faulthandler` writes the stack of every thread to a file
in memory. It needs no interpreter lock, so that a call which holds the lock is found in the act.
When the loop goes on, it logs what was written. Stacks name files, lines and functions, no values.

A process that is forked while the alarm is set would wait for that thread, which it does not have,
when it ends. So a fork takes the alarm back; the parent's next turn sets it again.
"""

from __future__ import annotations

import asyncio
import faulthandler
import os
from collections import deque
from collections.abc import Iterator
from typing import IO

from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from common.telemetry.log import Logger

TURN_SECONDS = 0.5
LAGS_KEPT = 20
STANDSTILL_SECONDS = 1.0
"""A loop that is late by this is said to have stood still."""
STACKS_BYTES_MAX = 32_768

os.register_at_fork(before=faulthandler.cancel_dump_traceback_later)


class LoopLag(Collector):
    """`late_s`: standstills from this length on are logged."""

    def __init__(self, log: Logger, *, late_s: float = STANDSTILL_SECONDS) -> None:
        self._log = log
        self._late_s = late_s
        self._lags: deque[float] = deque([0.0], maxlen=LAGS_KEPT)

    async def run(self) -> None:
        loop = asyncio.get_running_loop()
        with os.fdopen(os.memfd_create("stacks"), "w+b") as stacks:
            try:
                while True:
                    faulthandler.dump_traceback_later(TURN_SECONDS + self._late_s, file=stacks)
                    before = loop.time()
                    await asyncio.sleep(TURN_SECONDS)
                    lag = max(0.0, loop.time() - before - TURN_SECONDS)
                    self._lags.append(lag)
                    if lag >= self._late_s:
                        faulthandler.cancel_dump_traceback_later()
                        self._tell(lag, _taken(stacks))
            finally:
                faulthandler.cancel_dump_traceback_later()

    def _tell(self, lag: float, stacks: str) -> None:
        sentence = f"this daemon stood still for {lag:.1f} s; `stacks` is what its threads did then"
        self._log.warning("loop.stood_still", sentence=sentence, stacks=stacks)

    def collect(self) -> Iterator[Metric]:
        help_ = "How late the daemon's event loop was, at worst in the last ten seconds"
        yield GaugeMetricFamily("baton_event_loop_lag_seconds", help_, value=max(self._lags))


def _taken(stacks: IO[bytes]) -> str:
    """What the file has; it is empty after that."""
    text = os.pread(stacks.fileno(), STACKS_BYTES_MAX, 0)
    os.ftruncate(stacks.fileno(), 0)
    os.lseek(stacks.fileno(), 0, os.SEEK_SET)
    return text.decode(errors="replace")
