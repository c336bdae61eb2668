"""Counts refused peers, and logs them at a bounded rate, so that a flood does not fill the log."""

from __future__ import annotations

from common.clock import Clock
from common.telemetry.log import Logger

LOG_EVERY_SECONDS = 10.0


class Refusals:
    """A reason is logged at once, and then at most every `LOG_EVERY_SECONDS` with its count."""

    def __init__(self, log: Logger, clock: Clock) -> None:
        self._log = log
        self._clock = clock
        self._logged_at: dict[str, float] = {}
        #: Refusals by reason, which is one of a fixed set of words.
        self.counts: dict[str, int] = {}

    def add(self, reason: str, sentence: str) -> None:
        count = self.counts[reason] = self.counts.get(reason, 0) + 1
        now = self._clock.monotonic()
        if now - self._logged_at.get(reason, -LOG_EVERY_SECONDS) >= LOG_EVERY_SECONDS:
            self._logged_at[reason] = now
            self._log.warning("peer.refused", reason=reason, count=count, sentence=sentence)
