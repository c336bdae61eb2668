"""The measured drain rate, from which `Retry-After` is computed."""

from __future__ import annotations

from collections import deque

SAMPLES = 256


class DrainRate:
    """Requests that ended per second, over the last `SAMPLES` ends. The time since the last end is
    included, so that a fleet that stopped does not look fast."""

    def __init__(self) -> None:
        self._ends: deque[float] = deque(maxlen=SAMPLES)

    def ended(self, now: float) -> None:
        self._ends.append(now)

    def per_second(self, now: float) -> float | None:
        """None before the second end."""
        if len(self._ends) < 2:
            return None
        span = now - self._ends[0]
        return len(self._ends) / span if span > 0 else None
