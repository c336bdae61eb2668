"""The copies of a store alone, as ratios in one run: memory against memcpy, and the disk against a
loop that writes and reads the same bytes one after the other, as `dd` does. What is read from the
disk was dropped from the page cache.
"""

from __future__ import annotations

import asyncio
import os
import statistics
import threading
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

from common.kv.handoff.counters import HandoffCounters
from common.kv.layout import Geometry, HostMemory
from common.kv.store.arena import Arena
from common.kv.store.disk import DiskPlace
from common.kv.store.record import Spill
from common.kv.store.results import StoreSize
from common.kv.store.side import StoreSide, open_store
from common.kv.store.table import BlockCopy, BlockName, Medium

BLOCKS, LAYERS, PAGE = 128, 16, 128 << 10
TURNS = 5
WAIT_S = 120.0
FAST_MIB_S = 1e6


def drop_from_page_cache(folder: Path) -> None:
    for path in folder.rglob("*"):
        if path.is_file():
            file = os.open(path, os.O_RDONLY)
            os.fsync(file)
            os.posix_fadvise(file, 0, 0, os.POSIX_FADV_DONTNEED)
            os.close(file)


class Blocks:
    """A store over a disk on a thread of its own, as in an engine."""

    def __init__(self, folder: Path) -> None:
        geometry = Geometry(LAYERS, BLOCKS, PAGE, BLOCKS * PAGE, PAGE)
        self.base = np.random.default_rng(3).integers(0, 256, geometry.end, dtype=np.uint8)
        self.bytes = geometry.block_bytes * BLOCKS
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever)
        self._thread.start()
        self._ended = threading.Semaphore(0)
        place = DiskPlace(folder, b"k" * 16, BLOCKS, FAST_MIB_S * (1 << 20))
        self._side: StoreSide = open_store(
            Arena(HostMemory(self.base, geometry), BLOCKS),
            StoreSize(BLOCKS, 300.0, place),
            HandoffCounters(),
            self._loop,
            self._ended.release,
        )
        names = [BlockName(0, number.to_bytes(32)) for number in range(BLOCKS)]
        self._copies = [BlockCopy(at, at, name) for at, name in enumerate(names)]

    def save(self) -> None:
        self._side.save(self._copies)
        self._settle()

    def spill(self) -> None:
        self._side.spill([Spill(copy.slot, copy.slot, copy.name) for copy in self._copies], [])
        self._settle()

    def load(self, medium: Medium) -> None:
        self._side.load("r", [copy._replace(medium=medium) for copy in self._copies])
        self._settle()

    def close(self) -> None:
        self._side.close()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def _settle(self) -> None:
        while self._side.busy:
            assert self._ended.acquire(timeout=WAIT_S)
            results = self._side.drain()
            assert not results.failed
            assert not results.unspilled


def against_memcpy(folder: Path) -> None:
    """Prints the ratios of both directions."""
    blocks = Blocks(folder / "d0.0")
    other = np.empty_like(blocks.base)
    compare(
        "copied to memory",
        blocks,
        blocks.save,
        ("memcpy", lambda: np.copyto(other, blocks.base)),
        lambda: None,
    )
    compare(
        "copied from memory",
        blocks,
        lambda: blocks.load(Medium.RAM),
        ("memcpy", lambda: np.copyto(blocks.base, other)),
        lambda: None,
    )
    blocks.close()


def against_dd(folder: Path) -> None:
    """Prints the ratios of both directions."""
    plain, data = folder / "plain", np.random.default_rng(4).bytes(1 << 20)
    blocks = Blocks(folder / "d0.0")
    blocks.save()
    mib = blocks.bytes >> 20
    buffer = bytearray(1 << 20)

    def write_plain() -> None:
        with plain.open("r+b" if plain.exists() else "w+b", buffering=0) as file:
            for _ in range(mib):
                file.write(data)

    def read_plain() -> None:
        with plain.open("rb", buffering=0) as file:
            while file.readinto(buffer):
                pass

    def drop() -> None:
        drop_from_page_cache(folder)

    compare("written to the disk", blocks, blocks.spill, ("like dd", write_plain), drop)
    compare(
        "read from the disk",
        blocks,
        lambda: blocks.load(Medium.DISK),
        ("like dd", read_plain),
        drop,
    )
    blocks.close()


def compare(
    what: str,
    blocks: Blocks,
    ours: Callable[[], None],
    plain: tuple[str, Callable[[], None]],
    before: Callable[[], None],
) -> None:
    """Prints the ratio of the two rates, measured in turns. `plain`: its name, and itself."""
    mib, (name, theirs) = blocks.bytes >> 20, plain
    rates: tuple[list[float], list[float]] = ([], [])
    for at, call in ((0, ours), (1, theirs)) * TURNS:
        before()
        rates[at].append(mib / seconds(call))
    store_rate, plain_rate = (statistics.median(values[1:]) for values in rates)
    print(f"{mib} MiB {what}: store {store_rate:.0f} MiB/s, {name} {plain_rate:.0f} MiB/s")
    print(f"ratio {store_rate / plain_rate:.3f}")


def seconds(call: Callable[[], None]) -> float:
    began = time.monotonic()
    call()
    return time.monotonic() - began
