"""Latencies counted in buckets that grow by half a percent each: any number of them, fixed memory.

Theory of operation: as HdrHistogram, the error is relative (at most 0.25 % of a value), whatever
its size, so a quantile of milliseconds and one of minutes are as good. From 1 microsecond to 28
hours are 5,100 buckets, 40 KiB. The largest and smallest values are kept exactly.
"""

from __future__ import annotations

import math

import numpy as np

GROWTH = 1.005
FLOOR_MS = 0.001
BUCKETS = 5_100
_LOG = math.log(GROWTH)


class Histogram:
    """A histogram of milliseconds."""

    def __init__(self) -> None:
        self._counts = np.zeros(BUCKETS, np.int64)
        self.count = 0
        self.total = 0.0
        self.least = math.inf
        self.most = 0.0

    def add(self, value: float) -> None:
        at = int(math.log(value / FLOOR_MS) / _LOG) if value > FLOOR_MS else 0
        self._counts[min(at, BUCKETS - 1)] += 1
        self.count += 1
        self.total += value
        self.least = min(self.least, value)
        self.most = max(self.most, value)

    def quantile(self, share: float) -> float:
        """The smallest value that at least `share` of all do not exceed; 0 of nothing."""
        if not self.count:
            return 0.0
        rank = max(1, math.ceil(share * self.count))
        at = int(np.searchsorted(np.cumsum(self._counts), rank))
        middle = FLOOR_MS * GROWTH ** (at + 0.5)
        return float(min(self.most, max(self.least, middle)))

    @property
    def mean(self) -> float:
        return self.total / self.count if self.count else 0.0
