"""The kernels that copy pages of KV on a card and sum them up in the same pass.

Theory of operation: a program copies `PROGRAM_ROWS` rows that follow each other on the wire,
wherever they are in memory, and leaves what it has seen of the sums of `docs/kv-checksum.md` on the
card, in a place of its own: unsigned addition does not depend on the order, so a second kernel adds
them up, and leaves the few words of the result in page-locked host memory (`joined_sums`). They
have two parts, of the products and of the plain words; the second belongs to lanes that are one
word further. Atomic addition on the card made the copy a sixth slower; sums that each program left
in host memory cost the scatter 4 percent, and the host more to add up than the whole copy took.
Where the rows are is read from the card: out of host memory it made the copy a third slower.
"""

from __future__ import annotations

from typing import NamedTuple, TypeAlias

import numpy as np
import torch
import triton
import triton.language as tl
from numpy.typing import NDArray

from common.kv.checksum.definition import KEYS, LANES, ROW_BYTES, STEPS, Offsets, Sum
from common.kv.device.pages import Runs

ROW_WORDS = ROW_BYTES // 8
SUM_WORDS = 2 * ROW_WORDS
"""Words that a program leaves, and that the result has."""
_ROLLED = np.roll(np.arange(ROW_WORDS), LANES)
ROWS, PARTS, WARPS = 32, 4, 4
PROGRAM_ROWS = ROWS * PARTS
JOINED_COLUMNS, JOINED_ROWS = 16, 64
Words: TypeAlias = torch.Tensor
"""int64, flat."""


PLACE_WORDS = 5
"""Words before those of the blocks in `PageCopy.places`."""


class PageCopy(NamedTuple):
    """Pages between paged memory and the wire form."""

    paged: Words
    """All of the allocation."""
    wire: Words
    """`[layer][block][page]`."""
    places: Words
    """`places_of`, on the card."""
    sums: Words
    """`[program][SUM_WORDS]` on the card, at least as many as `programs` says: for the copy alone
    while it runs."""
    total: Words
    """`SUM_WORDS`, page-locked, which the copy writes: see `joined_sums`."""
    layers: int
    runs: Runs
    gathers: bool
    """From the pages to the wire, else the reverse."""


def programs(copied_bytes: int) -> int:
    """How many programs copy so many bytes."""
    return -(-copied_bytes // (PROGRAM_ROWS * ROW_BYTES))


def write_places(out: NDArray[np.int64], layer_step: int, runs: Runs, starts: Offsets) -> None:
    """Fills `out` with what `PageCopy.places` is: the page of the l-th layer and the b-th block
    begins at word `l * layer_step + starts[b]`, an even one. `PLACE_WORDS` more than the blocks."""
    rows = runs.words // ROW_WORDS
    out[:PLACE_WORDS] = layer_step, rows, runs.inner, runs.outer_step, runs.inner_step
    out[PLACE_WORDS:] = starts


@triton.jit(do_not_specialize=["block_count", "page_rows", "row_count"])  # type: ignore[untyped-decorator]
def _copy_pages(  # type: ignore[no-untyped-def]  # noqa: PLR0913, PLR0917 (a kernel's arguments)
    paged,
    wire,
    places,
    sums,
    keys,
    block_count,
    page_rows,
    row_count,
    GATHERS: tl.constexpr,  # noqa: N803
    IN_RUNS: tl.constexpr,  # noqa: N803
    SUMS: tl.constexpr,  # noqa: N803
    ROWS: tl.constexpr,  # noqa: N803
    PARTS: tl.constexpr,  # noqa: N803
):
    program = tl.program_id(0)
    lanes = tl.arange(0, 32)
    key = tl.load(keys + lanes).to(tl.uint64, bitcast=True)
    step = tl.load(keys + 32 + lanes).to(tl.uint64, bitcast=True)
    layer_step = tl.load(places)
    run_rows, inner = tl.load(places + 1).to(tl.int32), tl.load(places + 2).to(tl.int32)
    outer_step, inner_step = tl.load(places + 3), tl.load(places + 4)
    products = tl.zeros([32], tl.uint64)
    plain = tl.zeros([32], tl.uint64)
    for part in range(PARTS):
        rows = (program * PARTS + part) * ROWS + tl.arange(0, ROWS)
        there = rows < row_count
        page = rows // page_rows
        layer = (page // block_count).to(tl.int64)
        start = tl.load(places + 5 + page % block_count, mask=there, other=0)
        start += layer * layer_step
        row = rows % page_rows
        if IN_RUNS:
            run = row // run_rows
            start += (run // inner).to(tl.int64) * outer_step
            start += (run % inner).to(tl.int64) * inner_step
            row = row % run_rows
        start += row.to(tl.int64) * 32
        in_memory = paged + tl.multiple_of(start, 2)[:, None] + lanes[None, :]
        on_wire = wire + rows.to(tl.int64)[:, None] * 32 + lanes[None, :]
        inside = there[:, None]
        if GATHERS:
            words = tl.load(in_memory, mask=inside, other=0)
            tl.store(on_wire, words, mask=inside)
        else:
            words = tl.load(on_wire, mask=inside, other=0)
            tl.store(in_memory, words, mask=inside)
        if SUMS:
            data = words.to(tl.uint64, bitcast=True)
            number = rows.to(tl.int64).to(tl.uint64, bitcast=True)
            masked = data ^ (number[:, None] * step[None, :] + key[None, :])
            product = (masked & 0xFFFFFFFF) * (masked >> 32)
            products += tl.sum(tl.where(inside, product, 0), 0)
            plain += tl.sum(data, 0)
    if SUMS:
        mine = sums + program * 64 + lanes
        tl.store(mine, products.to(tl.int64, bitcast=True))
        tl.store(mine + 32, plain.to(tl.int64, bitcast=True))


@triton.jit(do_not_specialize=["count"])  # type: ignore[untyped-decorator]
def _join_sums(  # type: ignore[no-untyped-def]
    sums,
    total,
    count,
    COLUMNS: tl.constexpr,  # noqa: N803
    ROWS: tl.constexpr,  # noqa: N803
):
    """`count`: of programs that have left sums."""
    columns = tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS)
    found = tl.zeros([COLUMNS], tl.int64)
    for first in range(0, count, ROWS):
        rows = first + tl.arange(0, ROWS)
        at = sums + rows[:, None] * 64 + columns[None, :]
        found += tl.sum(tl.load(at, mask=(rows < count)[:, None], other=0), 0)
    tl.store(total + columns, found)


def keys_and_steps() -> Words:
    """What the kernel needs of the checksum's definition, in host memory."""
    both = np.concatenate([np.array(KEYS, np.uint64).ravel(), np.array(STEPS, np.uint64).ravel()])
    return torch.from_numpy(both.view(np.int64).copy())


def copy_pages(copy: PageCopy, keys: Words, *, summing: bool = True) -> None:
    """Launches this copy on the current stream. `keys`: `keys_and_steps`. The wire may be
    page-locked host memory, too. The caller has checked the bounds: nothing here does."""
    blocks, runs = copy.places.numel() - PLACE_WORDS, copy.runs
    page_rows = runs.page_words // ROW_WORDS
    rows = copy.layers * blocks * page_rows
    count = programs(rows * ROW_BYTES)
    _copy_pages[(count,)](
        copy.paged,
        copy.wire,
        copy.places,
        copy.sums,
        keys,
        blocks,
        page_rows,
        rows,
        GATHERS=copy.gathers,
        IN_RUNS=runs.words != runs.page_words,
        SUMS=summing,
        ROWS=ROWS,
        PARTS=PARTS,
        num_warps=WARPS,
    )
    if summing:
        _join_sums[(SUM_WORDS // JOINED_COLUMNS,)](
            copy.sums, copy.total, count, COLUMNS=JOINED_COLUMNS, ROWS=JOINED_ROWS
        )


def compile_for(device: torch.device, keys: Words) -> None:
    """Makes the kernels in all their forms, which takes a second or more, and waits for it. Nothing
    is compiled later: what differs from copy to copy is no part of the code."""
    page, wire, sums = (
        torch.zeros(words, dtype=torch.int64, device=device)
        for words in (2 * ROW_WORDS, 2 * ROW_WORDS, SUM_WORDS)
    )
    places = torch.zeros(PLACE_WORDS + 1, dtype=torch.int64)
    total = torch.zeros(SUM_WORDS, dtype=torch.int64, pin_memory=True)
    for runs in (Runs(2 * ROW_WORDS), Runs(ROW_WORDS, outer=2, outer_step=ROW_WORDS)):
        write_places(places.numpy(), 0, runs, np.zeros(1, np.int64))
        there = places.to(device)
        for gathers in (True, False):
            copy_pages(PageCopy(page, wire, there, sums, total, 1, runs, gathers), keys)
    torch.cuda.synchronize(device)


def joined_sums(total: NDArray[np.int64]) -> Sum:
    """The sum of what was copied, out of what the copy has left in `PageCopy.total`."""
    both = total.view(np.uint64)
    joined: bytes = (both[:ROW_WORDS] + both[ROW_WORDS:][_ROLLED]).tobytes()
    return joined
