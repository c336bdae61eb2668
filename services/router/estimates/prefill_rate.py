"""How long a prompt takes to compute, by its length and by the worker.

A worker computes its prompts one after the other, or several in one step. In both cases a prompt
took the time since the worker's previous prompt ended, or since it arrived if that is later; time
in the worker's queue is thereby excluded. The curve by length is learned over the fleet; each
worker has one speed factor on it.
"""

from __future__ import annotations

from collections import OrderedDict

from services.router.estimates.by_size import BySize
from services.router.estimates.worker_speeds import WORKERS_MAX, WorkerSpeeds

INSTANT_SECONDS = 1e-6


class PrefillRate:
    """The curve of the fleet, and the speed of each worker."""

    def __init__(self, memory: int, prior_tokens_per_s: float) -> None:
        self._seconds_per_token = BySize(memory, 1.0 / prior_tokens_per_s)
        #: When the latest prompt ended.
        self.measured_at = float("-inf")
        self.speeds = WorkerSpeeds(memory)
        #: When the latest prompt of each worker ended.
        self._ended: OrderedDict[str, float] = OrderedDict()

    @property
    def count(self) -> int:
        """Prompts measured."""
        return self._seconds_per_token.count

    def ended(self, worker: str, tokens: int, elapsed: float, now: float) -> None:
        """`worker` computed a prompt, `elapsed` seconds after it arrived; `tokens` of it were not
        cached."""
        before = self._ended.pop(worker, float("-inf"))
        seconds = max(INSTANT_SECONDS, min(elapsed, now - before))
        self._ended[worker] = now
        if len(self._ended) > WORKERS_MAX:
            self._ended.popitem(last=False)
        if tokens < 1:
            return
        self.measured_at = now
        self._seconds_per_token.add(tokens, seconds, tokens)
        self.speeds.add(worker, self._seconds_per_token.value(tokens) * tokens, seconds)

    def seconds(self, tokens: int, worker: str = "") -> float:
        """Seconds to compute `tokens` with an empty queue; without a name, on a typical worker."""
        fleet = self._seconds_per_token.value(tokens) * max(0, tokens)
        return fleet / self.speeds.measured(worker) if worker else fleet

    def tokens_per_s(self, tokens: int) -> float:
        """The rate of a typical worker at prompts of this length."""
        return 1.0 / self._seconds_per_token.value(tokens)

    def by_length(self) -> dict[int, float]:
        """Tokens per second, by the smallest prompt length of each measured row."""
        return {size: 1.0 / value for size, value in self._seconds_per_token.known().items()}
