"""How late a daemon's event loop is, and what its threads were doing when it stood still.

Theory of operation: the loop notes each time it has slept. A thread looks now and then, and when
the loop is late it notes the stack of every thread. It needs the interpreter lock for that: a call
that holds the lock is found in the moment in which it gives it back. When the loop goes on, it logs
what was noted. Stacks name files, lines and functions, and no values.

`faulthandler` has an alarm that needs no lock. It reads the stacks of threads that run meanwhile,
which may end the process, and so may its thread where the process is forked.
"""

from __future__ import annotations

import asyncio
import sys
import threading
import time
import traceback
from collections import deque
from collections.abc import Iterator

from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from common.telemetry.log import Logger

TURN_SECONDS = 0.5
LAGS_KEPT = 20
STANDSTILL_SECONDS = 1.0
"""A loop that is late by this is said to have stood still."""
STACKS_CHARS_MAX = 32_768


class LoopLag(Collector):
    """`late_s`: standstills from this length on are logged."""

    def __init__(self, log: Logger, *, late_s: float = STANDSTILL_SECONDS) -> None:
        self._log = log
        self._late_s = late_s
        self._lags: deque[float] = deque([0.0], maxlen=LAGS_KEPT)
        self._slept_at = 0.0
        self._stacks = ""

    async def run(self) -> None:
        over = threading.Event()
        self._slept_at = time.monotonic()
        threading.Thread(target=self._watch, args=(over,), name="loop-lag", daemon=True).start()
        try:
            while True:
                await asyncio.sleep(TURN_SECONDS)
                now = time.monotonic()
                lag = max(0.0, now - self._slept_at - TURN_SECONDS)
                self._lags.append(lag)
                if lag >= self._late_s:
                    self._tell(lag, self._stacks)
                self._slept_at, self._stacks = now, ""
        finally:
            over.set()

    def _watch(self, over: threading.Event) -> None:
        """In its thread. Notes the stacks once for each standstill."""
        while not over.wait(self._late_s / 2):
            late = time.monotonic() - self._slept_at - TURN_SECONDS
            if late >= self._late_s and not self._stacks:
                self._stacks = stacks()

    def _tell(self, lag: float, found: str) -> None:
        sentence = f"this daemon stood still for {lag:.1f} s; `stacks` is what its threads did then"
        self._log.warning("loop.stood_still", sentence=sentence, stacks=found)

    def collect(self) -> Iterator[Metric]:
        help_ = "How late the daemon's event loop was, at worst in the last ten seconds"
        yield GaugeMetricFamily("baton_event_loop_lag_seconds", help_, value=max(self._lags))


def stacks() -> str:
    """Of all threads but the one that asks, innermost call first."""
    mine, names = threading.get_ident(), {t.ident: t.name for t in threading.enumerate()}
    lines: list[str] = []
    for ident, frame in sys._current_frames().items():  # noqa: SLF001 - Python documents it
        if ident != mine:
            lines.append(f"thread {names.get(ident, ident)}:")
            calls = traceback.walk_stack(frame)
            lines += [f"  {f.f_code.co_filename}:{line} {f.f_code.co_name}" for f, line in calls]
    return "\n".join(lines)[:STACKS_CHARS_MAX]
