"""How long a prompt takes to compute, by its length and by the worker.

A worker computes its prompts one after the other, or several in one step. In both cases a prompt
took the time since the worker's previous prompt ended, or since it arrived if that is later; time
in the worker's queue is thereby excluded. The curve by length is learned over the fleet; each
worker has one speed factor on it.
"""

from __future__ import annotations

from collections import OrderedDict

from services.router.estimates.by_size import BySize
from services.router.estimates.ratio import Ratio

WORKERS_MAX = 4_096
TRUST_SAMPLES = 8
SPEED_MIN, SPEED_MAX = 0.05, 20.0
INSTANT_SECONDS = 1e-6


class _Speed:
    """One worker's speed: the ratio of expected to measured seconds, and when its previous prompt
    ended."""

    __slots__ = ("ended", "ratio")

    def __init__(self, memory: int) -> None:
        self.ratio = Ratio(memory)
        self.ended = float("-inf")


class PrefillRate:
    """The curve of the fleet, and the speed of each worker."""

    def __init__(self, memory: int, prior_tokens_per_s: float) -> None:
        self._memory = memory
        self._seconds_per_token = BySize(memory, 1.0 / prior_tokens_per_s)
        #: When the latest prompt ended.
        self.measured_at = float("-inf")
        self._speeds: OrderedDict[str, _Speed] = OrderedDict()

    @property
    def count(self) -> int:
        """Prompts measured."""
        return self._seconds_per_token.count

    def ended(self, worker: str, tokens: int, elapsed: float, now: float) -> None:
        """`worker` computed a prompt, `elapsed` seconds after it arrived; `tokens` of it were not
        cached."""
        speed = self._speed(worker)
        seconds = max(INSTANT_SECONDS, min(elapsed, now - speed.ended))
        speed.ended = now
        if tokens < 1:
            return
        self.measured_at = now
        self._seconds_per_token.add(tokens, seconds, tokens)
        speed.ratio.add(self._seconds_per_token.value(tokens) * tokens, seconds)

    def seconds(self, tokens: int, worker: str = "") -> float:
        """Seconds to compute `tokens` with an empty queue; without a name, on a typical worker."""
        fleet = self._seconds_per_token.value(tokens) * max(0, tokens)
        return fleet / self.speed(worker) if worker else fleet

    def tokens_per_s(self, tokens: int) -> float:
        """The rate of a typical worker at prompts of this length."""
        return 1.0 / self._seconds_per_token.value(tokens)

    def speed(self, worker: str) -> float:
        """1 is the speed of the fleet, 2 is twice as fast."""
        speed = self._speeds.get(worker)
        if speed is None or speed.ratio.count < TRUST_SAMPLES:
            return 1.0
        return min(SPEED_MAX, max(SPEED_MIN, speed.ratio.value(1.0)))

    def by_length(self) -> dict[int, float]:
        """Tokens per second, by the smallest prompt length of each measured row."""
        return {size: 1.0 / value for size, value in self._seconds_per_token.known().items()}

    def _speed(self, worker: str) -> _Speed:
        speed = self._speeds.get(worker)
        if speed is None:
            speed = self._speeds[worker] = _Speed(self._memory)
            if len(self._speeds) > WORKERS_MAX:
                self._speeds.popitem(last=False)
        else:
            self._speeds.move_to_end(worker)
        return speed
