"""A quotient of two sums that forget: what rates and means are measured with.

A ratio of sums, not a mean of ratios, so that one tiny sample cannot outweigh a large one, and a
sample of no duration (the second prompt of one engine step) is as good as any other.
"""

from __future__ import annotations


class Ratio:
    """`count`: samples so far, without the prior."""

    __slots__ = ("_bottom", "_keep", "_top", "count")

    def __init__(self, memory: int) -> None:
        self._keep = 1.0 - 1.0 / memory
        self._top = 0.0
        self._bottom = 0.0
        self.count = 0

    def add(self, top: float, bottom: float) -> None:
        self._top = self._top * self._keep + top
        self._bottom = self._bottom * self._keep + bottom
        self.count += 1

    def value(self, default: float) -> float:
        """`default` until there is a positive sum on both sides."""
        return self._top / self._bottom if self._top > 0 and self._bottom > 0 else default
