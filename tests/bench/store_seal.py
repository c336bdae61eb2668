"""Encryption of what a store has on disk: sealing and opening blocks, against copying the same
bytes with their sums, which is what a block costs on its way to the disk without it. No disk takes
part.
"""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Callable

import numpy as np

from common.kv.layout import Geometry, HostMemory
from common.kv.store.sealing import SECRET_BYTES, Sealing

BLOCK_BYTES, PAGE_BYTES, ROUNDS = 4 << 20, 128 << 10, 40


def main() -> None:
    """Prints each rate, and what it is of that of the copy."""
    layers = BLOCK_BYTES // PAGE_BYTES
    geometry = Geometry(layers, 2, PAGE_BYTES, 2 * PAGE_BYTES, PAGE_BYTES)
    memory = HostMemory(np.zeros(geometry.end, np.uint8), geometry)
    block = np.frombuffer(os.urandom(BLOCK_BYTES), np.uint8).copy()
    out = np.empty(BLOCK_BYTES, np.uint8)
    sealing = Sealing(os.urandom(SECRET_BYTES), b"k" * 16)
    sealed = sealing.seal_block(block).copy()
    copied = _bytes_per_s(lambda: memory.gather([1], out))
    print(f"{'copied with its sum':<24} {copied / 1e9:6.2f} GB/s")
    for what, call in (
        ("sealed", lambda: sealing.seal_block(block)),
        ("opened", lambda: sealing.open_block(sealed, out)),
    ):
        rate = _bytes_per_s(call)
        print(f"{what:<24} {rate / 1e9:6.2f} GB/s {rate / copied:6.2f} of the copy")


def _bytes_per_s(call: Callable[[], object]) -> float:
    times = []
    for _ in range(ROUNDS):
        began = time.perf_counter()
        call()
        times.append(time.perf_counter() - began)
    return BLOCK_BYTES / statistics.median(times)


if __name__ == "__main__":
    main()
