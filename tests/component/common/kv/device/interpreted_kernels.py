"""The kernel, in Triton's interpreter, against the copy in host memory. A program of its own,
because Triton decides when it is imported whether it interprets."""

from __future__ import annotations

import os

os.environ["TRITON_INTERPRET"] = "1"

import numpy as np
import torch

from common.kv.checksum.definition import Bytes
from common.kv.checksum.kernel import sum_of
from common.kv.device.kernels import (
    PLACE_WORDS,
    SUM_WORDS,
    PageCopy,
    copy_pages,
    joined_sums,
    keys_and_steps,
    programs,
    write_places,
)
from common.kv.device.pages import CardPages, TokenPage
from common.kv.layout import Geometry

PAGE = 3 * 256
TOKEN = 512
TOKENS_FIRST, HEADS_FIRST = (TokenPage(3, 32, TOKEN, first) for first in (True, False))
OF_TOKENS = Geometry(3, 4, TOKENS_FIRST.page_bytes, TOKENS_FIRST.page_bytes, 1 << 18, 512)
PAGES = {
    "layers outside": CardPages(Geometry(3, 5, PAGE, 5 * PAGE + 512, PAGE, 1024)),
    "blocks outside": CardPages(Geometry(3, 5, PAGE, PAGE + 256, 4 * PAGE, 256)),
    "programs of several pages": CardPages(Geometry(3, 40, 256 * 7, 40 * 256 * 7, 256 * 7)),
    "one row": CardPages(Geometry(3, 4, 256, 4 * 256, 256)),
    "more than a program": CardPages(Geometry(2, 4, 256 * 300, 4 * 256 * 300, 256 * 300)),
    "canonical, tokens outside": CardPages(OF_TOKENS, TOKENS_FIRST),
    "canonical, heads outside": CardPages(OF_TOKENS, HEADS_FIRST),
    "canonical, two of three heads": CardPages(OF_TOKENS, TOKENS_FIRST, range(1, 3)),
    "canonical, one of three heads": CardPages(OF_TOKENS, HEADS_FIRST, range(2, 3)),
}
BLOCKS = [3, 0, 2]
KEYS = keys_and_steps()


def page_copy(base: Bytes, wire: Bytes, pages: CardPages, *, gathers: bool) -> PageCopy:
    """Of all layers but the first."""
    places = np.zeros(PLACE_WORDS + len(BLOCKS), np.int64)
    starts = pages.starts(np.array(BLOCKS), 1)
    write_places(places, pages.layer_step, pages.runs, starts)
    return PageCopy(
        paged=torch.from_numpy(base).view(torch.int64),
        wire=torch.from_numpy(wire).view(torch.int64),
        places=torch.from_numpy(places),
        sums=torch.full(((programs(wire.nbytes) + 1) * SUM_WORDS,), 7),
        total=torch.full((SUM_WORDS,), 7),
        layers=pages.geometry.layers - 1,
        runs=pages.runs,
        gathers=gathers,
    )


def check(name: str) -> None:
    pages, random = PAGES[name], np.random.default_rng(1)
    base = random.integers(0, 256, -(-pages.own.end // 8) * 8, np.uint8)
    expected = base.copy()
    ids = tuple(torch.from_numpy(part) for part in pages.split(np.array(BLOCKS)))
    view = pages.view(torch.from_numpy(expected))[1:]
    due = view[:, *ids].flatten().numpy()
    wire = np.zeros_like(due)
    copy = page_copy(base, wire, pages, gathers=True)
    copy_pages(copy, KEYS)
    assert joined_sums(copy.total.numpy()) == sum_of(due), "gathered sum"
    assert np.array_equal(wire, due), "gathered bytes"

    data = random.integers(0, 256, wire.nbytes, np.uint8)
    copy = page_copy(base, data, pages, gathers=False)
    copy_pages(copy, KEYS)
    assert joined_sums(copy.total.numpy()) == sum_of(data), "scattered sum"
    view[:, *ids] = torch.from_numpy(data).view(view[:, *ids].shape)
    assert np.array_equal(base, expected), "scattered bytes"

    copy = page_copy(base, np.zeros_like(wire), pages, gathers=True)
    copy_pages(copy, KEYS, summing=False)
    assert copy.wire.any(), "copied without a sum"
    assert (copy.sums == 7).all(), "no sum"
    assert (copy.total == 7).all(), "no sum"


if __name__ == "__main__":
    for one in PAGES:
        check(one)
        print(f"right: {one}")
