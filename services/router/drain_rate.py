"""How fast work leaves, measured; what `Retry-After` is made of."""

from __future__ import annotations

from collections import deque

SAMPLES = 64
RETRY_AFTER_MS_MIN = 1_000
RETRY_AFTER_MS_MAX = 60_000


class DrainRate:
    """Requests that ended per second over the last `SAMPLES` ends, the silence since the last one
    included, so that a fleet that stops does not look fast."""

    def __init__(self) -> None:
        self._ends: deque[float] = deque(maxlen=SAMPLES)

    def ended(self, now: float) -> None:
        self._ends.append(now)

    def per_second(self, now: float) -> float | None:
        """None until two ends were seen."""
        if len(self._ends) < 2:
            return None
        span = now - self._ends[0]
        return len(self._ends) / span if span > 0 else None

    def retry_after_ms(self, ahead: int, now: float) -> int:
        """When a request that comes behind `ahead` others may find room."""
        rate = self.per_second(now)
        if rate is None:
            return RETRY_AFTER_MS_MIN
        wait = int(1000 * (ahead + 1) / rate)
        return max(RETRY_AFTER_MS_MIN, min(RETRY_AFTER_MS_MAX, wait))
