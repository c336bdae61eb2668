"""Sixteen LoRA adapters over the four slots of a batch, asked for by Zipf's law (exponent 1): how
many requests find theirs in the worker's memory, what loading takes, and whether any token is
another adapter's. By default all that the fleet file has stay in memory, and only the slots of the
batch change; with room for four, every adapter that is not one of the last four is read again.
Judged by what the same engine answers to each adapter alone; that this is right,
`tests/e2e/engine/test_adapters.py` compares with plain vLLM.
"""

from __future__ import annotations

import asyncio
import itertools
import multiprocessing
import random
import tempfile
import time
from pathlib import Path

from common.engine.adapters import resident_max
from common.engine.open import open_engine
from common.engine.port import EngineRequest
from common.messages import Role, Sampling
from common.process.lifecycle import Tasks
from tests.e2e.engine.pair import Worker, make_config
from tests.rigs.adapters import make_adapter

ADAPTERS, SLOTS, REQUESTS, AT_ONCE = 16, 4, 640, 4
IN_MEMORY = (resident_max({"max_loras": SLOTS}, ADAPTERS), SLOTS)
"""How many stay in memory, one row each; the first is what a fleet file with all of them means."""
PROMPT = [(7 * at) % 240 + 1 for at in range(20)]
SAMPLING = Sampling(max_tokens=8, temperature=0.0, ignore_eos=True)
WAIT_S = 60.0


def main() -> None:
    print(f"{ADAPTERS} adapters, {SLOTS} in a batch, {REQUESTS} requests by Zipf's law")
    context = multiprocessing.get_context("spawn")
    for in_memory in IN_MEMORY:
        child = context.Process(target=measure, args=(in_memory,))
        child.start()
        child.join()


def measure(in_memory: int) -> None:
    """In a process of its own: an engine is forked from it."""
    with tempfile.TemporaryDirectory(prefix="z") as folder:
        arguments = {"enable_lora": True, "max_loras": SLOTS, "max_cpu_loras": in_memory}
        config = make_config(Path(folder), {"args": arguments})
        engine = open_engine(config, Role.DECODE, "d0", "1")
        print(asyncio.run(_measure(Worker(engine), Path(folder), in_memory)), flush=True)


async def _measure(worker: Worker, folder: Path, in_memory: int) -> str:
    tasks = Tasks()
    tasks.start("listen", worker.listen())
    for nth in range(ADAPTERS):
        path = make_adapter(folder / f"a{nth}", nth)
        await worker.engine.load_adapter(f"a{nth}", str(path))
    ids = [status.id for status in worker.engine.adapters()]
    serial = itertools.count()

    async def ask(adapter: str) -> tuple[list[int], bool]:
        """The tokens, and whether the adapter was in memory."""
        resident = {status.id for status in worker.engine.adapters() if status.resident}
        key = f"r{next(serial)}"
        request = EngineRequest(key, 0, Role.DECODE, PROMPT, SAMPLING, None, key, adapter=adapter)
        result = await worker.add(request)
        await asyncio.wait_for(result.done.wait(), WAIT_S)
        return result.tokens, adapter in resident

    alone = {adapter: (await ask(adapter))[0] for adapter in ids}
    weights = [1 / (nth + 1) for nth in range(ADAPTERS)]
    asked = random.Random(5).choices(ids, weights, k=REQUESTS)
    hits = wrong = tokens = 0
    began = time.monotonic()
    for at in range(0, REQUESTS, AT_ONCE):
        some = asked[at : at + AT_ONCE]
        for adapter, (told, hit) in zip(some, await asyncio.gather(*map(ask, some)), strict=True):
            hits, tokens = hits + hit, tokens + len(told)
            wrong += sum(a != b for a, b in zip(told, alone[adapter], strict=True))
    seconds = time.monotonic() - began
    slowest = max(status.load_ms for status in worker.engine.adapters())
    await tasks.cancel_all()
    await worker.engine.close()
    different = len({tuple(text) for text in alone.values()})
    return (
        f"{in_memory:>2} in memory: {hits / REQUESTS:.0%} found there, load at most "
        f"{slowest:.0f} ms, {wrong} of {tokens} tokens of another adapter "
        f"({different} different texts), {REQUESTS / seconds:.0f} requests/s"
    )
