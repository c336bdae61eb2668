"""Copies pages of KV and sums them up in the same pass, so that a digest costs no second look.

Theory of operation: memory sets the pace of a copy, and arithmetic on what passes anyway is free.
Python has no such loop, so its code is made by LLVM when a worker starts, for the processor at
hand, in 0.1 s (`kernel_code.py`). Data is taken in rows of four words of eight 64-bit lanes. Each
word is masked with a key that changes from row to row, the halves of every lane are multiplied, and
product and lane are added to two of four sums: what one lane holds cannot change unseen, and the
keys tell where it stood. The sums of all lanes are the `Sum`; the digest is a hash of it
(`digest.py`). Data that does not fill its last row is summed as if zeros followed; the header says
how long it is.

Copying `through` the caches leaves them to others: the target is written by whole lines, which
need not be read first and are seldom wanted soon. A target that others wait for should stay there.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from common.errors import BatonError, Code

Bytes = NDArray[np.uint8]
Offsets = NDArray[np.int64]
Sum = bytes

LANES, WORDS = 8, 4
WORD_BYTES = 8 * LANES
ROW_BYTES = WORDS * WORD_BYTES
SUM_BYTES = ROW_BYTES
LINE_BYTES = 64
"""What a target of a copy `through` the caches is aligned to."""

_GOLDEN = 0x9E3779B97F4A7C15
_U64 = (1 << 64) - 1
Loop = Callable[[int, int, int, int, int, int, int, int], None]
"""`(target, target_at, source, source_at, pages, page_bytes, first_row, sums)`: addresses but for
the numbers of pages, bytes and rows; `target` and `target_at` of `read` are not used."""


def _scattered(number: int) -> int:
    """The nth value of splitmix64: spread over all 64 bits."""
    value = (number + 1) * _GOLDEN & _U64
    value = (value ^ value >> 30) * 0xBF58476D1CE4E5B9 & _U64
    value = (value ^ value >> 27) * 0x94D049BB133111EB & _U64
    return value ^ value >> 31


KEYS = tuple(tuple(_scattered(LANES * w + n) for n in range(LANES)) for w in range(WORDS))
STEPS = tuple(
    tuple(_scattered(LANES * (WORDS + w) + n) | 1 for n in range(LANES)) for w in range(WORDS)
)
"""The key of a lane in row r is `KEYS + r * STEPS`."""


@dataclass(frozen=True, slots=True)
class Kernel:
    """The compiled loops."""

    read: Loop
    copy: Loop
    through: Loop


def sum_of(data: Bytes) -> Sum:
    """Of contiguous bytes."""
    sums = np.zeros(SUM_BYTES // 8, np.uint64)
    rows, rest = divmod(data.nbytes, ROW_BYTES)
    start = np.zeros(1, np.int64)
    read = kernel().read
    if rows:
        read(0, 0, _at(data), _at(start), 1, rows * ROW_BYTES, 0, _at(sums))
    if rest:
        last = np.zeros(ROW_BYTES, np.uint8)
        last[:rest] = data[rows * ROW_BYTES :]
        read(0, 0, _at(last), _at(start), 1, ROW_BYTES, rows, _at(sums))
    return sums.tobytes()


def copy_pages(
    target: Bytes,
    target_at: Offsets,
    source: Bytes,
    source_at: Offsets,
    page_bytes: int,
    *,
    through: bool,
) -> Sum:
    """Copies a page of `page_bytes`, whole rows, from each offset of the source to its offset of
    the target; returns the sum of the pages in this order. `through`: the target's pages begin on
    lines. Offsets are the caller's to check: nothing here does."""
    sums = np.zeros(SUM_BYTES // 8, np.uint64)
    code = kernel().through if through else kernel().copy
    if len(source_at):
        places = (_at(target), _at(target_at), _at(source), _at(source_at))
        code(*places, len(source_at), page_bytes, 0, _at(sums))
    return sums.tobytes()


@functools.cache
def kernel() -> Kernel:
    """Of this process, made at the first call: worth one at start. Raises BatonError."""
    return compiled()


def compiled(*, summing: bool = True) -> Kernel:
    """As `kernel`, anew. `summing`: False leaves the sums out, to measure what they cost."""
    from common.kv import kernel_code

    try:
        made = kernel_code.loops(summing=summing)
    except (RuntimeError, OSError) as error:
        raise BatonError(
            Code.ENGINE_FAILED,
            f"the KV copy loops could not be compiled: {error}; does the unit of this worker set "
            "MemoryDenyWriteExecute?",
        ) from error
    return Kernel(*made)


def _at(array: NDArray[np.generic]) -> int:
    address: int = array.__array_interface__["data"][0]
    return address
