"""The disk below a store: the first token of a long prompt after `kill -9` of the worker, against
computing it. What is read was dropped from the page cache.
"""

from __future__ import annotations

import os
import random
import statistics
import tempfile
from pathlib import Path

from tests.bench import store, store_paths
from tests.e2e.engine.pair import Worker, until

FOLDER = os.environ.get("BATON_BENCH_DISK", "")
"""A folder on the disk that is measured; the one for temporary files if it is empty."""
DISK_MIB = int(os.environ.get("BATON_BENCH_DISK_MIB", "1024"))


def main() -> None:
    """All rows of the store. Those without an engine come last: vLLM does not start in a fork of a
    process in which llvmlite has compiled the loops of the copies."""
    with tempfile.TemporaryDirectory(dir=FOLDER or None) as folder:
        first_tokens(Path(folder) / "kv")
        store.main()
        store_paths.against_memcpy(Path(folder))
        store_paths.against_dd(Path(folder))


def first_tokens(folder: Path) -> None:
    """Prints the ratio after a restart."""
    model = store.large_model()
    sizes: store.Sizes = {
        "ram_mib": store.RAM_MIB,
        "disk_mib": DISK_MIB,
        "path": str(folder),
        "disk_write_mib_s": store_paths.FAST_MIB_S,
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
        await until(lambda: all_written(worker), store_paths.WAIT_S)

    async def after(worker: Worker) -> None:
        await ask(worker, "from the disk")
        await until(lambda: store.counts_of(worker).store_disk_read > 0)
        counts = store.counts_of(worker)
        damaged = counts.store_disk_damaged
        print(f"{counts.store_disk_read} blocks came from the disk, {damaged} were damaged")

    store.on_workers(model, {"d0": sizes}, before, kill=True)
    store_paths.drop_from_page_cache(folder)
    store.on_workers(model, {"d0": sizes}, after)
    computed, loaded = (statistics.median(values) for values in times.values())
    print(f"first token, computed {computed:.0f} ms, from the disk after kill -9 {loaded:.0f} ms")
    print(f"ratio {loaded / computed:.3f}", flush=True)


def all_written(worker: Worker) -> bool:
    counts = store.counts_of(worker)
    return 0 < counts.store_written == counts.store_disk_written
