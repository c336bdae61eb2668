"""Rendezvous hashing, weighted by capacity: a cell that comes or goes moves its own share only.

Each cell draws a number for the key, from a hash of both, and the highest one wins. The number is
`-capacity / ln(u)` with `u` even in (0, 1), so that a cell wins with a probability in proportion to
its capacity (Wang, Wei and Schindelhauer, "Weighted distributed hash tables").
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from hashlib import blake2b

DRAW_BYTES = 6
DRAWS = float(1 << 8 * DRAW_BYTES)
"""So many numbers a hash can give: few enough that a float tells them apart."""


def order(key: bytes, capacities: Mapping[str, float]) -> tuple[str, ...]:
    """The names of the cells, the one that the key belongs to first. `capacities`: above 0."""
    return tuple(sorted(capacities, key=lambda cell: (-_draw(key, cell, capacities[cell]), cell)))


def _draw(key: bytes, cell: str, capacity: float) -> float:
    digest = blake2b(key, digest_size=DRAW_BYTES, key=cell.encode()).digest()
    even = (int.from_bytes(digest) + 0.5) / DRAWS
    return -capacity / math.log(even)
