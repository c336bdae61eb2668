"""The ratio of two exponentially decaying sums; rates and means are measured with it.

It is a ratio of sums and not a mean of ratios, so that a tiny sample cannot outweigh a large one,
and a sample without duration (the second prompt of one engine step) counts as any other.
"""

from __future__ import annotations


class Ratio:
    """`memory`: samples after which an old one counts 1/e. `count`: samples so far."""

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
        """`default` until both sums are positive."""
        return self._top / self._bottom if self._top > 0 and self._bottom > 0 else default
