"""The p99 of the latest durations of something that repeats, such as an engine's steps.

It tells what is slow but usual from what hangs.
"""

from __future__ import annotations

from collections import deque

WINDOW = 512
SAMPLES_MIN = 32


class RollingP99:
    """The p99 of the latest `WINDOW` durations."""

    def __init__(self) -> None:
        self._seconds: deque[float] = deque(maxlen=WINDOW)

    def add(self, seconds: float) -> None:
        self._seconds.append(seconds)

    def p99_ms(self) -> float:
        """Milliseconds; 0 before `SAMPLES_MIN` durations, which are too few to know what is
        usual."""
        if len(self._seconds) < SAMPLES_MIN:
            return 0.0
        ordered = sorted(self._seconds)
        return ordered[int(0.99 * (len(ordered) - 1))] * 1000
