"""How long a prompt takes to compute, by its length and by the worker.

A worker computes its prompts one after the other, or several in one step. Either way the time that
one prompt cost is the time since the worker's previous prompt ended, or since this one arrived if
that is later; queueing is thereby left out. The curve by length is the fleet's; each worker has one
factor on it.
"""

from __future__ import annotations

from collections import OrderedDict

from services.router.estimators.by_size import BySize
from services.router.estimators.ratio import Ratio

WORKERS_MAX = 4_096
TRUST_SAMPLES = 8
SPEED_MIN, SPEED_MAX = 0.05, 20.0
INSTANT_SECONDS = 1e-6


class _Pace:
    """One worker's: expected over measured seconds, and when its previous prompt ended."""

    __slots__ = ("ended", "ratio")

    def __init__(self, memory: int) -> None:
        self.ratio = Ratio(memory)
        self.ended = float("-inf")


class PrefillRate:
    """`measured_at`: when the latest prompt ended."""

    def __init__(self, memory: int, prior_tokens_per_s: float) -> None:
        self._memory = memory
        self._seconds_per_token = BySize(memory, 1.0 / prior_tokens_per_s)
        self.measured_at = float("-inf")
        self._paces: OrderedDict[str, _Pace] = OrderedDict()

    @property
    def count(self) -> int:
        """Prompts measured."""
        return self._seconds_per_token.count

    def ended(self, worker: str, tokens: int, elapsed: float, now: float) -> None:
        """`worker`'s prompt is computed: `tokens` of it were not cached, `elapsed` seconds since it
        arrived there."""
        pace = self._pace(worker)
        seconds = max(INSTANT_SECONDS, min(elapsed, now - pace.ended))
        pace.ended = now
        if tokens < 1:
            return
        self.measured_at = now
        self._seconds_per_token.add(tokens, seconds, tokens)
        pace.ratio.add(self._seconds_per_token.value(tokens) * tokens, seconds)

    def seconds(self, tokens: int, worker: str = "") -> float:
        """To compute these many tokens with nothing ahead; of a typical worker if none is named."""
        fleet = self._seconds_per_token.value(tokens) * max(0, tokens)
        return fleet / self.speed(worker) if worker else fleet

    def tokens_per_s(self, tokens: int) -> float:
        """Of a typical worker, at prompts of this length."""
        return 1.0 / self._seconds_per_token.value(tokens)

    def speed(self, worker: str) -> float:
        """1 is the fleet's pace, 2 twice as fast."""
        pace = self._paces.get(worker)
        if pace is None or pace.ratio.count < TRUST_SAMPLES:
            return 1.0
        return min(SPEED_MAX, max(SPEED_MIN, pace.ratio.value(1.0)))

    def by_length(self) -> dict[int, float]:
        """Tokens/s by the smallest prompt length of each measured row."""
        return {size: 1.0 / value for size, value in self._seconds_per_token.known().items()}

    def _pace(self, worker: str) -> _Pace:
        pace = self._paces.get(worker)
        if pace is None:
            pace = self._paces[worker] = _Pace(self._memory)
            if len(self._paces) > WORKERS_MAX:
                self._paces.popitem(last=False)
        else:
            self._paces.move_to_end(worker)
        return pace
