"""What the store gives: the first token of a long prompt out of host memory, and out of another
worker's, against computing it. And what it costs where nothing ever comes back: the same prompts
with and without it, in turns.

They run on decode workers with real vLLM that compute their prompts themselves. `BATON_BENCH_MODEL`
names a checkpoint to use in place of the embedded model, which is so small that computing with it
costs little. `store_disk.py` does the same of the disk below it.
"""

from __future__ import annotations

import asyncio
import os
import random
import statistics
import tempfile
import time
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import psutil

from common.config import from_mapping
from common.engine.open import open_engine
from common.engine.port import EngineRequest
from common.messages import KvCounts, KvSource, Role, Sampling
from common.process.lifecycle import Tasks
from tests.e2e.engine.pair import ENGINE, Worker, until

MODEL = os.environ.get("BATON_BENCH_MODEL", "baton-tiny")
CACHE_MIB = int(os.environ.get("BATON_BENCH_CACHE_MIB", "24"))
"""Little more than one prompt, so that each lets the one before go."""
RAM_MIB = int(os.environ.get("BATON_BENCH_RAM_MIB", "512"))
PREFIX, TAIL, PROMPTS = 4000, 50, 8
OTHER, OUTPUTS, REQUESTS, AT_ONCE = 500, 64, 96, 8
SINGLES = 40

Use = Callable[..., Coroutine[Any, Any, None]]


def main() -> None:
    cold: list[float] = []
    warm: list[float] = []

    async def long_prompts(worker: Worker) -> None:
        draw = random.Random(1)
        prefixes = [text(draw, PREFIX) for _ in range(PROMPTS)]
        await first_token_ms(worker, text(draw, PREFIX))
        for times in (cold, warm):
            for prefix in prefixes:
                times.append(await first_token_ms(worker, prefix + text(draw, TAIL)))
        read = counts_of(worker).store_read
        print(f"{PROMPTS} prompts of {PREFIX} tokens; {read} blocks came out of the store")

    on_worker({"ram_mib": RAM_MIB}, long_prompts)
    computed, loaded = statistics.median(cold), statistics.median(warm)
    print(f"first token, computed {computed:.0f} ms, from the store {loaded:.0f} ms")
    print(f"ratio {loaded / computed:.3f}")

    pulled_ms = pulled()
    print(f"first token, pulled from another worker's store {pulled_ms:.0f} ms")
    print(f"ratio {pulled_ms / computed:.3f}")

    rates: dict[int, list[float]] = {0: [], RAM_MIB: []}
    firsts: dict[int, list[float]] = {0: [], RAM_MIB: []}

    for ram_mib in (0, RAM_MIB, RAM_MIB, 0):

        async def unique_prompts(worker: Worker, ram_mib: int = ram_mib) -> None:
            draw = random.Random(2)
            await first_token_ms(worker, text(draw, OTHER))
            singles = [await first_token_ms(worker, text(draw, OTHER)) for _ in range(SINGLES)]
            firsts[ram_mib].append(statistics.median(singles))
            rates[ram_mib].append(await tokens_per_s(worker, draw))

        with tempfile.TemporaryDirectory() as folder:
            on_worker(sizes_of(ram_mib, folder), unique_prompts)
    for name, values in (("tokens/s", rates), ("first token, ms", firsts)):
        without, with_store = values[0], values[RAM_MIB]
        print(f"nothing comes back: {name} without {shown(without)}, with {shown(with_store)}")
        print(f"ratio {statistics.mean(with_store) / statistics.mean(without):.3f}")


def pulled() -> float:
    """Milliseconds to the first token of prompts whose prefix another worker has stored."""
    times: list[float] = []

    async def long_prompts(worker: Worker, other: Worker) -> None:
        draw = random.Random(3)
        info = other.engine.info
        source = KvSource(
            name="d1",
            incarnation="inc-d1",
            fingerprint=info.fingerprint,
            kv_address=info.kv_address,
            tokens=PREFIX,
        )
        worker.engine.connect_kv(info.kv_address)
        await first_token_ms(worker, text(draw, PREFIX))
        for _ in range(PROMPTS):
            prefix = text(draw, PREFIX)
            held = counts_of(other).store_written
            await first_token_ms(other, prefix + text(draw, TAIL))
            blocks = PREFIX // info.capacity.block_tokens
            await until(lambda: counts_of(other).store_written >= held + blocks)  # noqa: B023
            times.append(await first_token_ms(worker, prefix + text(draw, TAIL), source))
        await until(lambda: counts_of(worker).store_pulled >= PROMPTS * blocks)

    on_worker({"ram_mib": RAM_MIB}, long_prompts, "d0", "d1")
    return statistics.median(times)


def text(draw: random.Random, tokens: int) -> list[int]:
    return [draw.randint(10, 250) for _ in range(tokens)]


def shown(values: list[float]) -> str:
    return " and ".join(f"{value:.1f}" for value in values)


def counts_of(worker: Worker) -> KvCounts:
    status = worker.engine.kv_status()
    return status.counts if status is not None else KvCounts()


def sizes_of(ram_mib: int, folder: str) -> dict[str, Any]:
    """With both tiers, or without a store."""
    return {"ram_mib": ram_mib, "disk_mib": 2 * ram_mib, "path": folder}


def on_worker(sizes: dict[str, Any], use: Use, *names: str, kill: bool = False) -> None:
    """Opens decode workers of these names, or one, for this use. `sizes`: of their stores. `kill`:
    their engines are killed with SIGKILL at the end."""
    names = names or ("d0",)
    with tempfile.TemporaryDirectory() as folder:
        engine = {**ENGINE, "kv_cache_mib": CACHE_MIB, "max_num_seqs": AT_ONCE}
        config = from_mapping(
            {
                "fleet": {"run_dir": str(Path(folder))},
                "model": {"path": MODEL, "dtype": "float32", "max_model_len": 4096},
                "decode": {name: {"engine": engine, "kv": {"store": sizes}} for name in names},
                "router": {"mode": "single"},
            }
        )
        before = set(psutil.Process().children(recursive=True))
        workers = [Worker(open_engine(config, Role.DECODE, name, f"inc-{name}")) for name in names]
        opened = set(psutil.Process().children(recursive=True)) - before

        async def body() -> None:
            tasks = Tasks()
            for name, worker in zip(names, workers, strict=True):
                tasks.start(name, worker.listen())
            await use(*workers)
            await tasks.cancel_all()
            for process in opened if kill else ():
                process.kill()
            psutil.wait_procs(opened if kill else (), 10)
            for worker in workers:
                await worker.engine.close()

        asyncio.run(body())


async def ask(
    worker: Worker, prompt: list[int], outputs: int, source: KvSource | None = None
) -> None:
    sampling = Sampling(max_tokens=outputs, temperature=0.0, ignore_eos=True)
    name = f"r{time.monotonic_ns()}"
    request = EngineRequest(name, 0, Role.DECODE, prompt, sampling, source=source)
    result = await worker.add(request)
    await result.done.wait()
    assert not result.error, result.error


async def first_token_ms(
    worker: Worker, prompt: list[int], source: KvSource | None = None
) -> float:
    began = time.monotonic()
    await ask(worker, prompt, 1, source)
    return (time.monotonic() - began) * 1000


async def tokens_per_s(worker: Worker, draw: random.Random) -> float:
    room = asyncio.Semaphore(AT_ONCE)
    prompts = [text(draw, OTHER) for _ in range(REQUESTS)]

    async def one(prompt: list[int]) -> None:
        async with room:
            await ask(worker, prompt, OUTPUTS)

    began = time.monotonic()
    await asyncio.gather(*(one(prompt) for prompt in prompts))
    return REQUESTS * OUTPUTS / (time.monotonic() - began)
