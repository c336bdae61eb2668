"""Where canonical blocks are in pages on a card, and which pages the kernel can copy."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from common.kv.device.pages import CardPages, Runs, TokenPage
from common.kv.layout import Geometry

LAYERS, BLOCKS, HEADS, TOKENS, ITEM_BYTES = 2, 3, 4, 32, 256
"""`ITEM_BYTES`: K and V of one token and head."""


def own(page_bytes: int, *, gap: int = 0, offset: int = 0) -> Geometry:
    step = page_bytes + gap
    return Geometry(LAYERS, BLOCKS, page_bytes, BLOCKS * step, step, offset)


@pytest.mark.parametrize("tokens_first", [True, False])
@pytest.mark.parametrize("heads", [None, range(1, 3)])
def test_a_canonical_block_is_where_its_tokens_are(tokens_first: bool, heads: range | None) -> None:
    """By the definition: `[head][token][K|V]` of 16 tokens."""
    page = TokenPage(HEADS, TOKENS, ITEM_BYTES, tokens_first)
    where = own(page.page_bytes, gap=512, offset=1024)
    flat = torch.arange(where.end) % 251
    order = (TOKENS, HEADS) if tokens_first else (HEADS, TOKENS)
    pages = flat.as_strided(
        (LAYERS, BLOCKS, *order, ITEM_BYTES),
        (where.layer_stride, where.block_stride, order[1] * ITEM_BYTES, ITEM_BYTES, 1),
        where.offset,
    )
    by_heads = pages.transpose(2, 3) if tokens_first else pages
    these = slice(None) if heads is None else slice(heads.start, heads.stop)
    canonical = CardPages(where, page, heads)
    ids = np.array([5, 0, 3])
    found = canonical.view(flat)[:, *(torch.from_numpy(part) for part in canonical.split(ids))]
    for at, block in enumerate(ids):
        tokens = slice(block % 2 * 16, block % 2 * 16 + 16)
        due = by_heads[:, block // 2, these, tokens]
        assert torch.equal(found[:, at].reshape(due.shape), due)
    assert canonical.geometry.blocks == BLOCKS * 2
    assert canonical.geometry.page_bytes == found[0, 0].numel()


@pytest.mark.parametrize("tokens_first", [True, False])
def test_the_kernel_is_told_the_same_places(tokens_first: bool) -> None:
    page = TokenPage(HEADS, TOKENS, ITEM_BYTES, tokens_first)
    where = own(page.page_bytes, gap=512, offset=1024)
    flat = torch.arange(where.end)
    canonical = CardPages(where, page, range(1, 3))
    runs, starts = canonical.runs, canonical.starts(np.array([5, 0]), 1)
    view = canonical.view(flat)
    for start, (block, part) in zip(starts.tolist(), [(2, 1), (0, 0)], strict=True):
        run_starts = [
            start + outer * runs.outer_step + inner * runs.inner_step
            for outer in range(runs.outer)
            for inner in range(runs.inner)
        ]
        assert [8 * one for one in run_starts] == view[1, block, part, ..., 0].flatten().tolist()
        assert runs.words * 8 == view.shape[-1]
    assert canonical.layer_step * 8 == where.layer_stride
    assert runs.page_words * 8 == canonical.geometry.page_bytes


def test_tokens_of_a_head_that_lie_together_are_one_run() -> None:
    page = TokenPage(HEADS, TOKENS, 96, tokens_first=False)
    words = 16 * 96 // 8
    assert CardPages(own(page.page_bytes), page).runs == Runs(words, HEADS, 1, 2 * words, 0)


@pytest.mark.parametrize(
    ("where", "page", "fits"),
    [
        (own(512), None, True),
        (own(640), None, False),
        (own(512, gap=16), None, True),
        (own(512, gap=8), None, False),
        (own(512, offset=8), None, False),
        (own(32 * 512), TokenPage(1, 32, 512, tokens_first=True), True),
        (own(32 * 384), TokenPage(1, 32, 384, tokens_first=True), False),
        (own(32 * 384), TokenPage(1, 32, 384, tokens_first=False), True),
    ],
)
def test_which_pages_the_kernel_copies(where: Geometry, page: TokenPage | None, fits: bool) -> None:
    assert CardPages(where, page).fits_kernel is fits


@pytest.mark.parametrize(
    "page", [TokenPage(1, 24, 512, tokens_first=True), TokenPage(2, 32, 512, tokens_first=True)]
)
def test_pages_without_a_canonical_form_are_refused(page: TokenPage) -> None:
    with pytest.raises(ValueError, match="no canonical form"):
        CardPages(own(24 * 512), page)
