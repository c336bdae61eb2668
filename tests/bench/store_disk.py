"""The disk below a store: the first token of a long prompt after `kill -9` of the worker, against
computing it; and the path of blocks to the disk and back, against one process that writes and reads
the same bytes one after the other, as `dd` does. What is read was dropped from the page cache.
"""

from __future__ import annotations

import asyncio
import os
import random
import statistics
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from common.kv.handoff.counters import HandoffCounters
from common.kv.layout import Geometry, HostMemory
from common.kv.store.arena import Arena
from common.kv.store.disk import DiskPlace
from common.kv.store.side import StoreSide, StoreSize, open_store
from common.kv.store.table import BlockCopy, BlockName, Medium, Spill
from tests.bench import store
from tests.e2e.engine.pair import Worker, until

FOLDER = os.environ.get("BATON_BENCH_DISK", "")
"""A folder on the disk that is measured; the one for temporary files if it is empty."""
DISK_MIB = int(os.environ.get("BATON_BENCH_DISK_MIB", "1024"))
BLOCKS, LAYERS, PAGE = 128, 16, 128 << 10
WAIT_S = 120.0
FAST_MIB_S = 1e6


def main() -> None:
    """After the rows of the store in memory."""
    store.main()
    with tempfile.TemporaryDirectory(dir=FOLDER or None) as folder:
        first_tokens(Path(folder) / "kv")
        against_dd(Path(folder))


def first_tokens(folder: Path) -> None:
    """Prints the ratio after a restart."""
    sizes: dict[str, Any] = {
        "ram_mib": store.RAM_MIB,
        "disk_mib": DISK_MIB,
        "path": str(folder),
        "disk_write_mib_s": FAST_MIB_S,
        "ttl_s": 3600,
    }
    draw = random.Random(1)
    prefixes = [store.text(draw, store.PREFIX) for _ in range(store.PROMPTS)]
    times: dict[str, list[float]] = {"computed": [], "from the disk": []}

    async def ask(worker: Worker, which: str) -> None:
        await store.first_token_ms(worker, store.text(draw, store.PREFIX // 8))
        for prefix in prefixes:
            prompt = prefix + store.text(draw, store.TAIL)
            times[which].append(await store.first_token_ms(worker, prompt))

    async def before(worker: Worker) -> None:
        await ask(worker, "computed")
        await until(lambda: all_written(worker), WAIT_S)

    async def after(worker: Worker) -> None:
        await ask(worker, "from the disk")
        await until(lambda: store.counts_of(worker).store_disk_read > 0)
        counts = store.counts_of(worker)
        damaged = counts.store_disk_damaged
        print(f"{counts.store_disk_read} blocks came from the disk, {damaged} were damaged")

    store.on_worker(sizes, before, kill=True)
    drop_from_page_cache(folder)
    store.on_worker(sizes, after)
    computed, loaded = (statistics.median(values) for values in times.values())
    print(f"first token, computed {computed:.0f} ms, from the disk after kill -9 {loaded:.0f} ms")
    print(f"ratio {loaded / computed:.3f}")


def all_written(worker: Worker) -> bool:
    counts = store.counts_of(worker)
    return 0 < counts.store_written == counts.store_disk_written


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
        base = np.random.default_rng(3).integers(0, 256, geometry.end, dtype=np.uint8)
        self.bytes = geometry.block_bytes * BLOCKS
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever)
        self._thread.start()
        self._ended = threading.Semaphore(0)
        place = DiskPlace(folder, b"k" * 16, BLOCKS, FAST_MIB_S * (1 << 20))
        self._side: StoreSide = open_store(
            Arena(HostMemory(base, geometry), BLOCKS),
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

    def load(self) -> None:
        self._side.load("r", [copy._replace(medium=Medium.DISK) for copy in self._copies])
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


def against_dd(folder: Path) -> None:
    """Prints the ratios of both directions, each in turns."""
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

    for what, ours, theirs in (
        ("written", blocks.spill, write_plain),
        ("read", blocks.load, read_plain),
    ):
        rates: tuple[list[float], list[float]] = ([], [])
        for at, call in ((0, ours), (1, theirs)) * 4:
            drop_from_page_cache(folder)
            rates[at].append(mib / seconds(call))
        store_rate, plain_rate = (statistics.median(values[1:]) for values in rates)
        print(f"{mib} MiB {what}: store {store_rate:.0f} MiB/s, like dd {plain_rate:.0f} MiB/s")
        print(f"ratio {store_rate / plain_rate:.3f}")
    blocks.close()


def seconds(call: Callable[[], None]) -> float:
    began = time.monotonic()
    call()
    return time.monotonic() - began
