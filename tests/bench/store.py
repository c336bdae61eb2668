"""What the store gives: the first token of a long prompt out of host memory, and out of another
worker's, against computing it. And what it costs where nothing ever comes back: a worker that
stores, in turns with itself when it does not.

They run on decode workers with real vLLM that compute their prompts themselves, with a model of 101
million random parameters, for which computing costs something. `BATON_BENCH_MODEL` names a
checkpoint to use in its place. The embedded model, with which a prompt costs next to nothing, shows
the greatest share that the cost can have. `store_disk.py` does the same of the disk below it, and
`store_paths.py` of the copies alone.
"""

from __future__ import annotations

import asyncio
import os
import random
import statistics
import tempfile
import time
from collections.abc import Callable, Coroutine
from multiprocessing.sharedctypes import RawValue
from pathlib import Path
from typing import Any, NamedTuple

import psutil

from common.config import from_mapping
from common.engine.connector.metadata import StorePlan
from common.engine.connector.store import StoreScheduler
from common.engine.open import open_engine
from common.engine.port import EngineRequest
from common.messages import KvCounts, KvSource, Role, Sampling
from common.model.embedded import EMBEDDED_MODEL_NAME, ensure_embedded_model
from common.model.weights import Recipe
from common.process.lifecycle import Tasks
from tests.e2e.engine.pair import ENGINE, Worker, until

PARAMETERS = Recipe(
    hidden=1536,
    intermediate=4096,
    heads=24,
    kv_heads=8,
    head_dim=64,
    std_head=0.06,
    std_query_key=0.08,
    std_value_output=0.05,
    std_mlp=0.03,
)
"""A hundred million, as wide as the embedded model's where a row is longer."""
RAM_MIB = int(os.environ.get("BATON_BENCH_RAM_MIB", "512"))
PREFIX, TAIL, PROMPTS = 4000, 50, 3
AT_ONCE = 8
SETTLE_S = 60.0

Use = Callable[..., Coroutine[Any, Any, None]]
Sizes = dict[str, Any]


class Load(NamedTuple):
    """What is asked where nothing comes back."""

    prompt_tokens: int
    output_tokens: int
    #: Of each round, with a store and without.
    singles: int
    together: int
    rounds: int


LARGE, EMBEDDED = Load(250, 32, 6, 8, 10), Load(500, 64, 12, 32, 16)


def main() -> None:
    model = large_model()
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

    on_workers(model, {"d0": {"ram_mib": RAM_MIB}}, long_prompts)
    computed, loaded = statistics.median(cold), statistics.median(warm)
    print(f"first token, computed {computed:.0f} ms, from the store {loaded:.0f} ms")
    print(f"ratio {loaded / computed:.3f}")

    pulled_ms = pulled(model)
    print(f"first token, pulled from another worker's store {pulled_ms:.0f} ms")
    print(f"ratio {pulled_ms / computed:.3f}", flush=True)

    switchable()
    nothing_comes_back(model, "the large model", LARGE)
    nothing_comes_back(EMBEDDED_MODEL_NAME, "the embedded model", EMBEDDED)


def large_model() -> str:
    return os.environ.get("BATON_BENCH_MODEL") or str(ensure_embedded_model(recipe=PARAMETERS))


def pulled(model: str) -> float:
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
        blocks = PREFIX // info.capacity.block_tokens
        for _ in range(PROMPTS):
            prefix = text(draw, PREFIX)
            held = counts_of(other).store_written
            await first_token_ms(other, prefix + text(draw, TAIL))
            await until(lambda: counts_of(other).store_written >= held + blocks)  # noqa: B023
            times.append(await first_token_ms(worker, prefix + text(draw, TAIL), source))
        await until(lambda: counts_of(worker).store_pulled >= PROMPTS * blocks)

    size = {"ram_mib": RAM_MIB}
    on_workers(model, {"d0": size, "d1": size}, long_prompts)
    return statistics.median(times)


def nothing_comes_back(model: str, which: str, load: Load) -> None:
    """Prints what both tiers cost: one worker that stores what it computes and looks for each
    prompt, and in the next turn does neither (call `switchable` before). Two workers alike differ
    by more than a store costs: the second by up to 18 % on two cores."""
    firsts: Pairs = []
    rates: Pairs = []

    async def unique_prompts(worker: Worker) -> None:
        draw = random.Random(2)

        async def pair(of: Callable[[], Coroutine[Any, Any, float]], turn: int) -> Paired:
            found = {}
            for storing in (0, 1) if turn % 2 else (1, 0):
                STORING.value = storing
                found[storing] = await of()
                await settled(worker)
            return found[0], found[1]

        async def first() -> float:
            return await first_token_ms(worker, text(draw, load.prompt_tokens))

        async def rate() -> float:
            return await tokens_per_s(worker, draw, load)

        await pair(rate, 0)
        for turn in range(load.rounds):
            firsts.extend([await pair(first, at) for at in range(load.singles)])
            rates.append(await pair(rate, turn))

    with tempfile.TemporaryDirectory() as folder:
        both = {"ram_mib": RAM_MIB, "disk_mib": 2 * RAM_MIB, "path": folder}
        on_workers(model, {"d0": both}, unique_prompts)
    print(f"nothing comes back, {which}, prompts of {load.prompt_tokens} tokens:")
    for name, pairs in (("tokens/s", rates), ("first token, ms", firsts)):
        print(f"{name}: {compared(pairs)}", flush=True)


STORING = RawValue("b", 1)
"""Whether engines that were opened after `switchable` store. They are forks of this process."""


def switchable() -> None:
    """From here on, what is opened does as if it had no store while `STORING` is 0."""
    new_request, step = StoreScheduler.new_request, StoreScheduler.step

    def follow(scheduler: StoreScheduler, request: Any) -> None:
        if STORING.value:
            new_request(scheduler, request)

    def plan(scheduler: StoreScheduler, output: Any) -> StorePlan:
        if STORING.value or scheduler.pending:
            return step(scheduler, output)
        counts, disk_counts = scheduler._reported
        return StorePlan(counts=counts, disk_counts=disk_counts)

    StoreScheduler.new_request = follow  # type: ignore[method-assign, assignment]
    StoreScheduler.step = plan  # type: ignore[method-assign, assignment]


Paired = tuple[float, float]
"""A figure without a store, and one with it right before or after."""
Pairs = list[Paired]


def compared(pairs: Pairs) -> str:
    """Each turn against the one beside it, because the machine drifts within minutes."""
    ratios = [after / before for before, after in pairs]
    low, middle, high = statistics.quantiles(ratios, n=4)
    without = statistics.median(before for before, _ in pairs)
    added = statistics.median(after - before for before, after in pairs)
    return (
        f"without {without:.1f}, with a store {added:+.2f}, ratio {middle:.3f} (of {len(pairs)} "
        f"pairs, half of them {low:.3f} to {high:.3f})"
    )


async def settled(worker: Worker) -> None:
    """What this worker's store writes behind is not to slow the other worker's turn."""

    def all_written() -> bool:
        counts = counts_of(worker)
        return counts.store_disk_written + counts.store_disk_skipped >= counts.store_written

    await until(all_written, SETTLE_S)


def text(draw: random.Random, tokens: int) -> list[int]:
    return [draw.randint(10, 250) for _ in range(tokens)]


def counts_of(worker: Worker) -> KvCounts:
    status = worker.engine.kv_status()
    return status.counts if status is not None else KvCounts()


def on_workers(model: str, sizes: dict[str, Sizes], use: Use, *, kill: bool = False) -> None:
    """Opens decode workers for this use. `sizes`: of the store of each, by its name. `kill`: their
    engines are killed with SIGKILL at the end."""
    cache_mib = 24 if model == EMBEDDED_MODEL_NAME else 80
    with tempfile.TemporaryDirectory() as folder:
        # Little more than one prompt, so that each lets the one before go.
        engine = {**ENGINE, "kv_cache_mib": cache_mib, "max_num_seqs": AT_ONCE}
        config = from_mapping(
            {
                "fleet": {"run_dir": str(Path(folder))},
                "model": {"path": model, "dtype": "float32", "max_model_len": 4096},
                "decode": {
                    name: {"engine": engine, "kv": {"store": size}} for name, size in sizes.items()
                },
                "router": {"mode": "single" if len(sizes) == 1 else "replicated"},
            }
        )
        before = set(psutil.Process().children(recursive=True))
        workers = [Worker(open_engine(config, Role.DECODE, name, f"inc-{name}")) for name in sizes]
        opened = set(psutil.Process().children(recursive=True)) - before

        async def body() -> None:
            tasks = Tasks()
            for name, worker in zip(sizes, workers, strict=True):
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


async def tokens_per_s(worker: Worker, draw: random.Random, load: Load) -> float:
    room = asyncio.Semaphore(AT_ONCE)
    prompts = [text(draw, load.prompt_tokens) for _ in range(load.together)]

    async def one(prompt: list[int]) -> None:
        async with room:
            await ask(worker, prompt, load.output_tokens)

    began = time.monotonic()
    await asyncio.gather(*(one(prompt) for prompt in prompts))
    return load.together * load.output_tokens / (time.monotonic() - began)
