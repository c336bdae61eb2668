"""Counts the peers that were not let in, and says so without being a gift to whoever floods."""

from __future__ import annotations

from common.clock import Clock
from common.log import Logger

SAY_EVERY_SECONDS = 10.0


class Refusals:
    """`counts`: by reason, a fixed set of words. A reason is logged at once, then at most every
    `SAY_EVERY_SECONDS` with its count."""

    def __init__(self, log: Logger, clock: Clock) -> None:
        self._log = log
        self._clock = clock
        self._said: dict[str, float] = {}
        self.counts: dict[str, int] = {}

    def add(self, reason: str, sentence: str) -> None:
        count = self.counts[reason] = self.counts.get(reason, 0) + 1
        now = self._clock.monotonic()
        if now - self._said.get(reason, -SAY_EVERY_SECONDS) >= SAY_EVERY_SECONDS:
            self._said[reason] = now
            self._log.warning("peer.refused", reason=reason, count=count, sentence=sentence)
