"""Copies pages of KV and sums them up in the same pass, so that a digest needs no second one.

Theory of operation: memory sets the pace of a copy, and arithmetic on the bytes that pass costs
next to nothing. `docs/kv-checksum.md` defines the sums. LLVM compiles the loops when a worker
starts, for its processor, in 0.1 s (`codegen.py`). Where memory may not be made executable the
loops are numpy's (`portable.py`), which compute the same sums more slowly.

A copy may write its target with non-temporal stores that bypass the caches. The target's lines then
need not be read first, and the caches keep what others want. A target that is read soon after
should be written with ordinary stores.
"""

from __future__ import annotations

import ctypes
import functools
import mmap
import os
from dataclasses import dataclass

import numpy as np
import structlog
from numpy.typing import NDArray

from common.blocks import Element
from common.kv.checksum import portable
from common.kv.checksum.definition import (
    ROW_BYTES,
    SUM_BYTES,
    TILE_ITEMS,
    Bytes,
    Loop,
    Offsets,
    PageSizes,
    Sum,
    TileLoop,
)


@dataclass(frozen=True, slots=True)
class Kernel:
    """The loops, compiled or portable."""

    read: Loop
    """Sums up and copies nothing."""
    copy: Loop
    """Copies with ordinary stores."""
    copy_nontemporal: Loop
    """Copies with stores that bypass the caches. Every page of the target begins on a line."""


PORTABLE = Kernel(portable.read, portable.copy, portable.copy)


def sum_of(data: Bytes) -> Sum:
    """The sum of contiguous bytes."""
    sums = np.zeros(SUM_BYTES // 8, np.uint64)
    rows, rest = divmod(data.nbytes, ROW_BYTES)
    start = np.zeros(1, np.int64)
    read = kernel().read
    if rows:
        read(0, 0, _address(data), _address(start), 1, rows * ROW_BYTES, 0, _address(sums))
    if rest:
        last = np.zeros(ROW_BYTES, np.uint8)
        last[:rest] = data[rows * ROW_BYTES :]
        read(0, 0, _address(last), _address(start), 1, ROW_BYTES, rows, _address(sums))
    return sums.tobytes()


def copy_pages(
    target: Bytes,
    target_at: Offsets,
    source: Bytes,
    source_at: Offsets,
    page_bytes: int,
    *,
    nontemporal: bool,
) -> Sum:
    """Copies a page of `page_bytes`, whole rows, from each offset of the source to the offset of
    the target with the same index. Returns the sum of the pages in this order.

    `nontemporal`: the stores bypass the caches, and every page of the target must begin on a line.
    The caller has checked the offsets: nothing here does."""
    sums = np.zeros(SUM_BYTES // 8, np.uint64)
    loop = kernel().copy_nontemporal if nontemporal else kernel().copy
    if len(source_at):
        places = (_address(target), _address(target_at), _address(source), _address(source_at))
        loop(*places, len(source_at), page_bytes, 0, _address(sums))
    return sums.tobytes()


@functools.cache
def kernel() -> Kernel:
    """The loops of this process. The first call makes them, so a worker calls this when it starts;
    where they cannot be compiled, it logs that and why, once, and returns the portable ones."""
    try:
        return compiled()
    except (OSError, RuntimeError) as error:
        sentence = (
            "KV is copied and summed up by slow loops: the fast ones could not be compiled: "
            f"{error}; does the unit of this worker set MemoryDenyWriteExecute?"
        )
        structlog.get_logger("baton").warning("checksum.slow", sentence=sentence)
        return PORTABLE


def run_tiles(loop: TileLoop, canonical: Bytes, memory: Bytes, table: Offsets, heads: int) -> Sum:
    """Runs one of `tile_loops` over the runs of this table, `[run][field]`, which fill `canonical`.
    Returns the sum of `canonical`. The caller has checked all of it: nothing here does."""
    sums = np.zeros(SUM_BYTES // 8, np.uint64)
    if len(table):
        places = _address(canonical), _address(memory), _address(table)
        loop(*places, len(table), heads, _address(sums))
    return sums.tobytes()


@functools.cache
def tile_loops(
    page: PageSizes, *, on_lines: bool, convert: tuple[Element, Element] | None = None
) -> tuple[TileLoop, TileLoop] | None:
    """Into the canonical form and out of it (`tilegen.py`), for pages of these sizes; None where
    there are no compiled loops, or they do not fit. Raises RuntimeError if LLVM fails."""
    if kernel() is PORTABLE or page.items % TILE_ITEMS:
        return None
    # Not at the top: see codegen.
    from common.kv.checksum import tilegen

    return tilegen.tile_loops(page, on_lines=on_lines, convert=convert)


def compiled(*, summing: bool = True) -> Kernel:
    """Compiles the loops anew. `summing`: False leaves the sums out, to measure what they cost.
    Raises OSError where memory may not be made executable, RuntimeError if LLVM fails."""
    _check_executable_memory()
    # Not at the top: see codegen.
    from common.kv.checksum import codegen

    return Kernel(*codegen.loops(summing=summing))


def _check_executable_memory() -> None:
    """Raises OSError where written memory may not be made executable. LLVM does not look whether it
    may, and its code would then kill the process at the first call."""
    libc = ctypes.CDLL(None, use_errno=True)
    private = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
    with mmap.mmap(-1, mmap.PAGESIZE, flags=private) as page:
        held = ctypes.c_char.from_buffer(page)
        address = ctypes.c_void_p(ctypes.addressof(held))
        length = ctypes.c_size_t(mmap.PAGESIZE)
        failed = libc.mprotect(address, length, mmap.PROT_READ | mmap.PROT_EXEC)
        del held  # A page that is held cannot be closed.
    if failed:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))


def _address(array: NDArray[np.generic]) -> int:
    address: int = array.__array_interface__["data"][0]
    return address
