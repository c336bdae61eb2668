"""A prompt that waits in the router's queue: its blocks come out of another worker's store before
it does, by the hashes that its engine will compute, and its tokens equal those of plain vLLM."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from common.config import from_mapping
from common.engine.open import open_engine
from common.engine.port import EngineRequest
from common.messages import KvCounts, KvSource, Role
from common.process.lifecycle import Tasks
from tests.e2e.engine.pair import ANSWER_MS, ENGINE, GREEDY, LOAD_TIMEOUT_MS, Result, Worker, until
from tests.e2e.prompts import BLOCK, FIRST_ID, LAST_ID
from tests.e2e.reference import plain_answers

pytestmark = pytest.mark.timeout(300)

BLOCKS = 12


def make_prompts() -> list[list[int]]:
    draw = random.Random(41)
    return [[draw.randint(FIRST_ID, LAST_ID) for _ in range(BLOCKS * BLOCK + 9)] for _ in range(3)]


class Two:
    """Decode workers that compute prompts themselves, each with a store."""

    def __init__(self, folder: Path) -> None:
        kv = {"load_timeout_ms": LOAD_TIMEOUT_MS, "answer_ms": ANSWER_MS}
        worker = {"engine": ENGINE, "kv": {**kv, "store": {"ram_mib": 64}}}
        config = from_mapping(
            {
                "fleet": {"run_dir": str(folder)},
                "model": {"path": "baton-tiny", "dtype": "float32", "max_model_len": 4096},
                "decode": {"d0": worker, "d1": worker},
                "router": {"mode": "replicated"},
            }
        )
        self.d0, self.d1 = (
            Worker(open_engine(config, Role.DECODE, name, f"inc-{name}")) for name in ("d0", "d1")
        )

    def source(self) -> KvSource:
        info = self.d1.engine.info
        return KvSource(
            name="d1",
            incarnation="inc-d1",
            fingerprint=info.fingerprint,
            kv_address=info.kv_address,
            tokens=BLOCKS * BLOCK,
        )


def counts(worker: Worker) -> KvCounts:
    status = worker.engine.kv_status()
    return status.counts if status is not None else KvCounts()


async def ask(worker: Worker, name: str, prompt: list[int], salt: str | None = None) -> Result:
    request = EngineRequest(name, 1, Role.DECODE, prompt, GREEDY, cache_salt=salt)
    result = await worker.add(request)
    await asyncio.wait_for(result.done.wait(), 60)
    return result


def play(two: Two, work: Callable[[], Awaitable[None]]) -> None:
    async def body() -> None:
        tasks = Tasks()
        for name, worker in (("d0", two.d0), ("d1", two.d1)):
            tasks.start(name, worker.listen())
        await work()
        for worker in (two.d0, two.d1):
            await worker.empty(30.0)
        await tasks.cancel_all()
        for worker in (two.d0, two.d1):
            await worker.engine.close()

    asyncio.run(body())


def test_what_is_prefetched_is_loaded_by_its_request_alone(tmp_path: Path) -> None:
    prompts = make_prompts()
    plain = plain_answers(prompts, GREEDY.max_tokens)
    two = Two(tmp_path)
    d0, d1 = two.d0, two.d1

    def prefetch(name: str, prompt: list[int], salt: str | None = None) -> None:
        d0.engine.prefetch(
            EngineRequest(
                name, 1, Role.PREFILL, prompt, GREEDY, cache_salt=salt, source=two.source()
            )
        )

    async def work() -> None:
        for number, salt in enumerate((None, "tenant", None)):
            await ask(d1, f"first{number}", prompts[number], salt)
        await until(lambda: counts(d1).store_held >= 3 * BLOCKS, 30)
        for number, salt in enumerate((None, "tenant")):
            prefetch(f"r{number}", prompts[number], salt)
            await until(lambda: counts(d0).prefetched == BLOCKS * (number + 1), 30)  # noqa: B023
            result = await ask(d0, f"r{number}", prompts[number], salt)
            assert (result.tokens, result.cached) == (plain[number], BLOCKS * BLOCK)
            await until(lambda: counts(d0).prefetch_used == BLOCKS * (number + 1), 30)  # noqa: B023
        assert (counts(d0).store_read, counts(d0).store_pulled) == (2 * BLOCKS, 0)

        prefetch("other-salt", prompts[2], "tenant")
        prefetch("taken-back", prompts[2])
        await until(lambda: counts(d0).prefetched == 3 * BLOCKS, 30)
        await d0.engine.abort("taken-back", 1)
        await until(lambda: counts(d0).prefetch_wasted == BLOCKS, 30)
        result = await ask(d0, "late", prompts[2])
        assert (result.tokens, result.cached) == (plain[2], BLOCKS * BLOCK), "it is still there"
        assert (counts(d0).prefetch_used, counts(d0).prefetch_late) == (2 * BLOCKS, 0)

    play(two, work)
