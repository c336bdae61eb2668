"""The only place that reads time. Cores take instants as arguments; shells take a `Clock`.

Instants are seconds as float from an arbitrary start, monotonic, and never leave the process:
on the wire a duration or the milliseconds that remain is sent instead.
"""

from __future__ import annotations

import time
from typing import Protocol


class Clock(Protocol):
    def monotonic(self) -> float:
        """Seconds from an arbitrary start; never goes back."""
        ...

    def unix_ms(self) -> int:
        """Wall clock in ms since 1970, for people and `created` fields only."""
        ...


class SystemClock:
    def monotonic(self) -> float:
        return time.monotonic()

    def unix_ms(self) -> int:
        return time.time_ns() // 1_000_000


class ManualClock:
    """A clock that moves only by `advance`, for tests and simulation."""

    def __init__(self, start: float = 0.0, unix_ms: int = 1_700_000_000_000) -> None:
        self._now = start
        self._unix_ms = unix_ms

    def monotonic(self) -> float:
        return self._now

    def unix_ms(self) -> int:
        return self._unix_ms + int(self._now * 1000)

    def advance(self, seconds: float) -> None:
        if seconds < 0:
            raise ValueError("a monotonic clock cannot go back")
        self._now += seconds
