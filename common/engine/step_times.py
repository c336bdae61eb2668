"""How long an engine's latest steps took: what tells a slow engine from a hung one."""

from __future__ import annotations

from collections import deque

WINDOW = 512
STEPS_MIN = 32


class StepTimes:
    """The latest `WINDOW` steps."""

    def __init__(self) -> None:
        self._seconds: deque[float] = deque(maxlen=WINDOW)

    def add(self, seconds: float) -> None:
        self._seconds.append(seconds)

    def p99_ms(self) -> float:
        """0 before `STEPS_MIN` steps: too few to say what is usual."""
        if len(self._seconds) < STEPS_MIN:
            return 0.0
        ordered = sorted(self._seconds)
        return ordered[int(0.99 * (len(ordered) - 1))] * 1000
