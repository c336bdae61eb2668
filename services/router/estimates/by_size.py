"""A ratio for each power of two of a size. A size without samples takes the value of the nearest
size that has some; without any samples, it takes the prior."""

from __future__ import annotations

from services.router.estimates.ratio import Ratio

SIZES = 24


class BySize:
    """Sizes from 2**(SIZES - 1) on share the last row. `prior`: the value without any samples."""

    def __init__(self, memory: int, prior: float) -> None:
        self._rows = [Ratio(memory) for _ in range(SIZES)]
        self._nearest: list[int | None] = [None] * SIZES
        self._prior = prior
        self.count = 0

    def add(self, size: int, top: float, bottom: float) -> None:
        at = _row(size)
        first = not self._rows[at].count
        self._rows[at].add(top, bottom)
        self.count += 1
        if first:
            known = [i for i, row in enumerate(self._rows) if row.count]
            self._nearest = [min(known, key=lambda k: abs(k - i)) for i in range(SIZES)]

    def value(self, size: int) -> float:
        nearest = self._nearest[_row(size)]
        return self._prior if nearest is None else self._rows[nearest].value(self._prior)

    def known(self) -> dict[int, float]:
        """Value by the smallest size of each row that has samples."""
        rows = enumerate(self._rows)
        return {(1 << i) >> 1: row.value(self._prior) for i, row in rows if row.count}


def _row(size: int) -> int:
    bits = size.bit_length() if size > 0 else 0
    return bits if bits < SIZES else SIZES - 1
