"""The kernel that copies pages of KV on a card and sums them up in the same pass.

Theory of operation: a program copies `PROGRAM_ROWS` rows that follow each other on the wire,
wherever their pages are, and leaves what it has seen of the sums of `docs/kv-checksum.md` in
page-locked host memory, in a place of its own: unsigned addition does not depend on the order, so
the host adds them up (`joined_sums`). Each place has two parts, of the products and of the plain
words; the second belongs to lanes that are one word further. Atomic addition on the card made the
copy a sixth slower, and its result would have to be fetched. Where the pages are is read from the
card: out of host memory it made the copy a third slower.
"""

from __future__ import annotations

from typing import NamedTuple, TypeAlias

import numpy as np
import torch
import triton
import triton.language as tl
from numpy.typing import NDArray

from common.kv.checksum.definition import KEYS, LANES, ROW_BYTES, STEPS, Sum

ROW_WORDS = ROW_BYTES // 8
SUM_WORDS = 2 * ROW_WORDS
"""Words that a program leaves."""
PLACE_WORDS = 3
"""Words before the block ids in `PageCopy.places`."""
ROWS, PARTS, WARPS = 32, 4, 4
PROGRAM_ROWS = ROWS * PARTS
Words: TypeAlias = torch.Tensor
"""int64, flat."""


class PageCopy(NamedTuple):
    """Whole pages between paged memory and the wire form."""

    paged: Words
    """All of the allocation."""
    wire: Words
    """`[layer][block][page]`."""
    places: Words
    """`first, layer, block` and the ids of the blocks: the page of the l-th layer and of block b
    begins at word `first + l * layer + b * block`, an even one. On the card."""
    sums: Words
    """`[program][SUM_WORDS]`, which the copy writes; as many as `programs` says. Page-locked."""
    layers: int
    page_words: int
    """A whole number of `ROW_WORDS`."""
    gathers: bool
    """From the pages to the wire, else the reverse."""


def programs(copied_bytes: int) -> int:
    """How many programs copy so many bytes."""
    return -(-copied_bytes // (PROGRAM_ROWS * ROW_BYTES))


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
    SUMS: tl.constexpr,  # noqa: N803
    ROWS: tl.constexpr,  # noqa: N803
    PARTS: tl.constexpr,  # noqa: N803
):
    program = tl.program_id(0)
    lanes = tl.arange(0, 32)
    key = tl.load(keys + lanes).to(tl.uint64, bitcast=True)
    step = tl.load(keys + 32 + lanes).to(tl.uint64, bitcast=True)
    first_word, layer_words = tl.load(places), tl.load(places + 1)
    block_words = tl.load(places + 2)
    products = tl.zeros([32], tl.uint64)
    plain = tl.zeros([32], tl.uint64)
    for part in range(PARTS):
        rows = (program * PARTS + part) * ROWS + tl.arange(0, ROWS)
        there = rows < row_count
        page = rows // page_rows
        layer = (page // block_count).to(tl.int64)
        block = tl.load(places + 3 + page % block_count, mask=there, other=0)
        start = first_word + layer * layer_words + block * block_words
        start += (rows % page_rows).to(tl.int64) * 32
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


def keys_and_steps() -> Words:
    """What the kernel needs of the checksum's definition, in host memory."""
    both = np.concatenate([np.array(KEYS, np.uint64).ravel(), np.array(STEPS, np.uint64).ravel()])
    return torch.from_numpy(both.view(np.int64).copy())


def copy_pages(copy: PageCopy, keys: Words, *, summing: bool = True) -> None:
    """Launches this copy on the current stream. `keys`: `keys_and_steps`. The wire may be
    page-locked host memory, too. The caller has checked the bounds: nothing here does."""
    blocks, page_rows = copy.places.numel() - PLACE_WORDS, copy.page_words // ROW_WORDS
    rows = copy.layers * blocks * page_rows
    _copy_pages[(programs(rows * ROW_BYTES),)](
        copy.paged,
        copy.wire,
        copy.places,
        copy.sums,
        keys,
        blocks,
        page_rows,
        rows,
        GATHERS=copy.gathers,
        SUMS=summing,
        ROWS=ROWS,
        PARTS=PARTS,
        num_warps=WARPS,
    )


def compile_for(device: torch.device, keys: Words) -> None:
    """Makes both directions of the kernel, which takes a second or more, and waits for it. Nothing
    is compiled later: what differs from copy to copy is no part of the code."""
    page, wire, sums = (
        torch.zeros(words, dtype=torch.int64, device=device)
        for words in (ROW_WORDS, ROW_WORDS, SUM_WORDS)
    )
    places = torch.zeros(PLACE_WORDS + 1, dtype=torch.int64, device=device)
    for gathers in (True, False):
        copy_pages(PageCopy(page, wire, places, sums, 1, ROW_WORDS, gathers), keys)
    torch.cuda.synchronize(device)


def joined_sums(sums: NDArray[np.int64]) -> Sum:
    """The sum of what was copied, out of what all programs have left."""
    both = sums.view(np.uint64).reshape(-1, SUM_WORDS).sum(0)
    total: bytes = (both[:ROW_WORDS] + np.roll(both[ROW_WORDS:], LANES)).tobytes()
    return total
