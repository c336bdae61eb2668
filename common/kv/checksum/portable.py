"""The loops of the checksum in numpy, for a process that may not make memory executable.

They compute the sums that the compiled loops compute. A worker that has only these exchanges KV
with any other worker, and no peer has to know. They take several passes over data that lies in the
caches, so they are slower.
"""

from __future__ import annotations

import ctypes

import numpy as np
from numpy.typing import NDArray

from common.kv.checksum.definition import KEYS, LANES, ROW_BYTES, STEPS, SUM_BYTES, Bytes

Lanes = NDArray[np.uint64]

PIECE_ROWS = 512
"""Rows that are summed up at a time: their intermediate results stay in the caches."""
_ROW_LANES = ROW_BYTES // 8
_KEYS = np.array(KEYS, np.uint64).ravel()
_STEPS = np.array(STEPS, np.uint64).ravel()
_LOW, _HALF = np.uint64(0xFFFFFFFF), np.uint64(32)


def read(
    _target: int,
    _target_at: int,
    source: int,
    source_at: int,
    pages: int,
    page_bytes: int,
    first_row: int,
    sums: int,
) -> None:
    """A `Loop` that sums up only."""
    total = _view(sums, SUM_BYTES).view(np.uint64)
    for number, offset in enumerate(_offsets(source_at, pages)):
        page = _view(source + offset, page_bytes)
        _add(page, first_row + number * (page_bytes // ROW_BYTES), total)


def copy(  # noqa: PLR0917 (the signature of Loop)
    target: int,
    target_at: int,
    source: int,
    source_at: int,
    pages: int,
    page_bytes: int,
    first_row: int,
    sums: int,
) -> None:
    """A `Loop` that copies and sums up."""
    total = _view(sums, SUM_BYTES).view(np.uint64)
    places = list(zip(_offsets(target_at, pages), _offsets(source_at, pages), strict=True))
    batch = max(1, PIECE_ROWS * ROW_BYTES // page_bytes)
    taken = np.empty(min(batch, pages) * page_bytes, np.uint8)
    for first in range(0, pages, batch):
        some = places[first : first + batch]
        page = taken.ctypes.data
        for write_at, read_at in some:
            # The source is read once, since its owner may overwrite it meanwhile: the sum is of the
            # bytes that reach the target.
            ctypes.memmove(page, source + read_at, page_bytes)
            ctypes.memmove(target + write_at, page, page_bytes)
            page += page_bytes
        row = first_row + first * (page_bytes // ROW_BYTES)
        _add(taken[: len(some) * page_bytes], row, total)


def _add(data: Bytes, first_row: int, sums: Lanes) -> None:
    """Adds whole rows, of which the first has this number, to the sums of all lanes."""
    rows = data.view(np.uint64).reshape(-1, _ROW_LANES)
    for start in range(0, len(rows), PIECE_ROWS):
        piece = rows[start : start + PIECE_ROWS]
        numbers = np.arange(len(piece), dtype=np.uint64) + np.uint64(first_row + start)
        masked = numbers[:, None] * _STEPS
        masked += _KEYS
        masked ^= piece
        high = masked >> _HALF
        masked &= _LOW
        masked *= high
        sums += masked.sum(0)
        sums += np.roll(piece.sum(0), LANES)


def _view(address: int, size: int) -> Bytes:
    """The memory at this address as an array, without a copy."""
    return np.ctypeslib.as_array((ctypes.c_uint8 * size).from_address(address))


def _offsets(address: int, pages: int) -> list[int]:
    offsets: list[int] = _view(address, 8 * pages).view(np.int64).tolist()
    return offsets
