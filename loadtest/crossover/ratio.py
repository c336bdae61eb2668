"""A ratio of two things measured side by side, several times."""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import fmean, stdev

import msgspec

T_975 = (12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179)
"""Student's t, two-sided 95 %, by degrees of freedom from 1 on; after the table 2.1."""


class Ratio(msgspec.Struct, frozen=True):
    """A mean with its confidence interval of 95 %, infinitely wide with a single repeat."""

    value: float
    #: Lower end of the interval.
    low: float
    #: Upper end of the interval.
    high: float

    @property
    def sign(self) -> int:
        """1: above 1 for sure, -1: below for sure, 0: not shown."""
        return (self.low > 1) - (self.high < 1)


def ratio(tops: Sequence[float], bottoms: Sequence[float]) -> Ratio:
    """The geometric mean of the paired ratios. Values that are not positive (no good answer at all)
    count as a thousandth of the other, a defeat that no mean hides."""
    logs = [_log_ratio(*pair) for pair in zip(tops, bottoms, strict=True)]
    mean = fmean(logs)
    if len(logs) < 2:
        return Ratio(math.exp(mean), 0.0, math.inf)
    t = T_975[len(logs) - 2] if len(logs) - 2 < len(T_975) else 2.1
    half = t * stdev(logs) / math.sqrt(len(logs))
    return Ratio(math.exp(mean), math.exp(mean - half), math.exp(mean + half))


def _log_ratio(top: float, bottom: float) -> float:
    if top <= 0 and bottom <= 0:
        return 0.0
    if top <= 0:
        return math.log(1e-3)
    return math.log(1e3) if bottom <= 0 else math.log(top / bottom)
