"""When a child that died is started again: exponential backoff and a start limit, as systemd's.

Pure: instants are arguments (seconds, monotonic).
"""

from __future__ import annotations

from dataclasses import dataclass, field

BACKOFF_SECONDS = 0.5
BACKOFF_SECONDS_MAX = 10.0
START_LIMIT = 5
START_WINDOW_SECONDS = 60.0


@dataclass(slots=True)
class Restarts:
    """Deaths of one child inside the window."""

    deaths: list[float] = field(default_factory=list)

    def died(self, now: float) -> float | None:
        """Seconds to wait before the next start, or None: it died too often, give up."""
        self.deaths = [at for at in self.deaths if now - at < START_WINDOW_SECONDS] + [now]
        if len(self.deaths) > START_LIMIT:
            return None
        return min(BACKOFF_SECONDS * 2.0 ** (len(self.deaths) - 1), BACKOFF_SECONDS_MAX)
