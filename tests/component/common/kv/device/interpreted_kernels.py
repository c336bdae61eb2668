"""The kernel, in Triton's interpreter, against the copy in host memory. A program of its own,
because Triton decides when it is imported whether it interprets."""

from __future__ import annotations

import os

os.environ["TRITON_INTERPRET"] = "1"

import numpy as np
import torch

from common.kv.device.kernels import (
    SUM_WORDS,
    PageCopy,
    copy_pages,
    joined_sums,
    keys_and_steps,
    programs,
)
from common.kv.layout import Geometry, HostMemory

PAGE = 3 * 256
GEOMETRIES = {
    "layers outside": Geometry(3, 5, PAGE, 5 * PAGE + 512, PAGE, 1024),
    "blocks outside": Geometry(3, 5, PAGE, PAGE + 256, 4 * PAGE, 256),
    "programs of several pages": Geometry(3, 40, 256 * 7, 40 * 256 * 7, 256 * 7),
    "one row": Geometry(3, 4, 256, 4 * 256, 256),
    "more than a program": Geometry(2, 4, 256 * 300, 4 * 256 * 300, 256 * 300),
}
BLOCKS = [3, 0, 2]
KEYS = keys_and_steps()


def page_copy(base: np.ndarray, wire: np.ndarray, which: Geometry, *, gathers: bool) -> PageCopy:
    """Of all layers but the first."""
    steps = which.offset + which.layer_stride, which.layer_stride, which.block_stride
    return PageCopy(
        paged=torch.from_numpy(base).view(torch.int64),
        wire=torch.from_numpy(wire).view(torch.int64),
        places=torch.tensor([step // 8 for step in steps] + BLOCKS),
        sums=torch.full((programs(wire.nbytes) * SUM_WORDS,), 7),
        layers=which.layers - 1,
        page_words=which.page_bytes // 8,
        gathers=gathers,
    )


def check(name: str) -> None:
    geometry, random = GEOMETRIES[name], np.random.default_rng(1)
    base = random.integers(0, 256, -(-geometry.end // 8) * 8, np.uint8)
    host = HostMemory(base.copy(), geometry)
    layers = range(1, geometry.layers)
    wire = np.zeros(len(layers) * len(BLOCKS) * geometry.page_bytes, np.uint8)
    due = wire.copy()
    copy = page_copy(base, wire, geometry, gathers=True)
    copy_pages(copy, KEYS)
    assert joined_sums(copy.sums.numpy()) == host.gather(BLOCKS, due, layers), "gathered sum"
    assert np.array_equal(wire, due), "gathered bytes"

    data = random.integers(0, 256, wire.nbytes, np.uint8)
    copy = page_copy(base, data, geometry, gathers=False)
    copy_pages(copy, KEYS)
    assert joined_sums(copy.sums.numpy()) == host.scatter(BLOCKS, data, layers), "scattered sum"
    assert np.array_equal(HostMemory(base, geometry).pages, host.pages), "scattered bytes"

    copy = page_copy(base, np.zeros_like(wire), geometry, gathers=True)
    copy_pages(copy, KEYS, summing=False)
    assert copy.wire.any(), "copied without a sum"
    assert (copy.sums == 7).all(), "no sum"


if __name__ == "__main__":
    for one in GEOMETRIES:
        check(one)
        print(f"right: {one}")
