"""The constants of the KV checksum and the types of those who compute it.

`docs/kv-checksum.md` defines the checksum; the test vectors beside its tests hold it fast.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Bytes = NDArray[np.uint8]
Offsets = NDArray[np.int64]
Sum = bytes
"""The sums of all lanes, `SUM_BYTES` long: what a digest is the hash of."""

LANES = 8
"""Lanes of a word; a lane is an unsigned little-endian number of 64 bits."""
WORDS = 4
"""Words of a row."""
WORD_BYTES = 8 * LANES
ROW_BYTES = WORDS * WORD_BYTES
SUM_BYTES = ROW_BYTES
LINE_BYTES = 64
"""A cache line. The target of a copy with non-temporal stores is aligned to it."""

Loop = Callable[[int, int, int, int, int, int, int, int], None]
"""`(target, target_at, source, source_at, pages, page_bytes, first_row, sums)`.

`target`, `source` and `sums` are addresses. So are `target_at` and `source_at`, of one 64-bit
offset in bytes per page. `page_bytes` is a whole number of rows. `first_row` is the number of the
first row of the first page. The loop adds to the sums. A loop that only reads does not use the
targets. A loop runs with at least one page and checks nothing."""

TILE_ITEMS = 16
"""A tile has as many tokens, and so many items of its K are transposed at a time."""


class PageSizes(NamedTuple):
    """Of a head-major page (`common.kv.canonical.HeadMajorPage`), whatever its heads."""

    tokens: int
    items: int
    item_bytes: int


RUN_FIELDS = 4
TileLoop = Callable[[int, int, int, int, int, int], None]
"""`(canonical, memory, table, runs, heads, sums)`: addresses, of the canonical bytes, of the memory
and of a table of runs, canonical blocks that follow each other in one page; the number of runs, and
of the heads of each block; and the address of the sums, to which it adds. A row of the table has
`RUN_FIELDS` numbers of 64 bits: where the run is in the canonical bytes, where the K and the V of
its first head begin in the memory, and how many blocks it has. A loop runs with at least one run
and one head, and checks nothing."""

_U64 = (1 << 64) - 1


def _splitmix64(number: int) -> int:
    """Value `number`, from 0, of splitmix64 with seed 0."""
    value = (number + 1) * 0x9E3779B97F4A7C15 & _U64
    value = (value ^ value >> 30) * 0xBF58476D1CE4E5B9 & _U64
    value = (value ^ value >> 27) * 0x94D049BB133111EB & _U64
    return value ^ value >> 31


KEYS = tuple(tuple(_splitmix64(LANES * w + n) for n in range(LANES)) for w in range(WORDS))
"""By word and lane: the key of this lane in row 0."""
STEPS = tuple(
    tuple(_splitmix64(LANES * (WORDS + w) + n) | 1 for n in range(LANES)) for w in range(WORDS)
)
"""By word and lane: what the key grows by from row to row."""
