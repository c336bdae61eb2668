"""A store on disk below a worker: what it serves after `kill -9` equals one plain vLLM."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Coroutine
from functools import partial
from pathlib import Path
from typing import Any

import psutil
import pytest

from common.config import Config, from_mapping
from common.engine.open import open_engine
from common.engine.port import EngineRequest
from common.messages import KvCounts, Role
from common.process.lifecycle import Tasks
from tests.e2e.engine.pair import ENGINE, GREEDY, Result, Worker, until
from tests.e2e.engine.test_store import (
    AT_ONCE,
    BLOCK_BYTES,
    CACHE_MIB,
    FAMILIES,
    PREFIX_BLOCKS,
    make_prompts,
    wrong,
)
from tests.e2e.prompts import BLOCK
from tests.e2e.reference import plain_answers

pytestmark = pytest.mark.timeout(300)

PREFIXES = FAMILIES * PREFIX_BLOCKS
BLOCK_MIB = BLOCK_BYTES / (1 << 20)


@pytest.fixture(scope="module")
def prompts() -> list[list[int]]:
    """Two of each family."""
    return make_prompts()[: 2 * FAMILIES]


@pytest.fixture(scope="module")
def plain(prompts: list[list[int]]) -> list[list[int]]:
    """What one vLLM engine without any of our code answers."""
    return plain_answers(prompts, GREEDY.max_tokens)


def config(folder: Path, args: dict[str, Any] | None = None, **store: Any) -> Config:
    """`args`: further ones of the engine."""
    kv = {"store": {"ram_mib": 64, "disk_mib": 64, "path": str(folder / "kv"), **store}}
    engine = {**ENGINE, "kv_cache_mib": CACHE_MIB, "args": args or {}}
    return from_mapping(
        {
            "fleet": {"run_dir": str(folder)},
            "model": {"path": "baton-tiny", "dtype": "float32", "max_model_len": 4096},
            "decode": {"d0": {"engine": engine, "kv": kv}},
            "router": {"mode": "single"},
        }
    )


def play(config: Config, work: Callable[[Worker], Coroutine[Any, Any, None]]) -> None:
    """Opens a worker for this work; at the end its engine is killed with SIGKILL."""
    before = set(psutil.Process().children(recursive=True))
    worker = Worker(open_engine(config, Role.DECODE, "d0", "inc-d0"))
    engine = set(psutil.Process().children(recursive=True)) - before
    assert engine

    async def body() -> None:
        tasks = Tasks()
        tasks.start("decode", worker.listen())
        await work(worker)
        await tasks.cancel_all()
        for process in engine:
            process.kill()
        psutil.wait_procs(engine, 10)
        await worker.engine.close()

    asyncio.run(body())


async def ask_all(worker: Worker, prompts: list[list[int]]) -> list[Result]:
    room = asyncio.Semaphore(AT_ONCE)

    async def one(at: int) -> Result:
        async with room:
            name = f"r{worker.batches}.{at}"
            request = EngineRequest(name, 0, Role.DECODE, prompts[at], GREEDY, None, None)
            result = await worker.add(request)
            await asyncio.wait_for(result.done.wait(), 60)
            return result

    return await asyncio.gather(*(one(at) for at in range(len(prompts))))


def counts_of(worker: Worker) -> KvCounts:
    """At most half a second old."""
    status = worker.engine.kv_status()
    return status.counts if status is not None else KvCounts()


async def fill(worker: Worker, prompts: list[list[int]], plain: list[list[int]]) -> None:
    """The first prompt of each family, until their prefixes are on the disk."""
    assert wrong(await ask_all(worker, prompts[:FAMILIES]), plain[:FAMILIES]) == 0
    await until(lambda: counts_of(worker).store_disk_written >= PREFIXES)


def test_prompts_are_served_from_the_disk_after_kill_9(
    tmp_path: Path, prompts: list[list[int]], plain: list[list[int]]
) -> None:
    async def before(worker: Worker) -> None:
        await fill(worker, prompts, plain)
        assert counts_of(worker).store_disk_read == 0

    async def after(worker: Worker) -> None:
        results = await ask_all(worker, prompts[FAMILIES:])
        assert wrong(results, plain[FAMILIES:]) == 0
        assert [result.cached >= PREFIX_BLOCKS * BLOCK for result in results].count(False) == 0
        await until(lambda: counts_of(worker).store_disk_read >= PREFIXES)
        assert counts_of(worker).store_disk_damaged == 0

    play(config(tmp_path), before)
    play(config(tmp_path), after)
    files = [path for path in (tmp_path / "kv").rglob("*") if path.is_file()]
    assert {path.stat().st_mode & 0o137 for path in files} == {0}
    assert sum(path.stat().st_size for path in files) <= 64 << 20


def test_what_memory_has_dropped_comes_from_the_disk(
    tmp_path: Path, prompts: list[list[int]], plain: list[list[int]]
) -> None:
    """Memory holds an eighth of the prefixes, and what one prompt brings at a time."""
    ram_mib = round(PREFIXES * BLOCK_MIB / 8)

    async def work(worker: Worker) -> None:
        def written(blocks: int) -> bool:
            return counts_of(worker).store_disk_written >= blocks

        for at in range(FAMILIES):
            some = slice(at, at + 1)
            assert wrong(await ask_all(worker, prompts[some]), plain[some]) == 0
            await until(partial(written, PREFIX_BLOCKS * (at + 1)))
        assert wrong(await ask_all(worker, prompts[FAMILIES:]), plain[FAMILIES:]) == 0
        await until(lambda: counts_of(worker).store_disk_read >= PREFIXES // 2)
        assert counts_of(worker).store_held <= ram_mib / BLOCK_MIB

    play(config(tmp_path, ram_mib=ram_mib), work)


def test_damage_on_the_disk_is_found_and_computed_again(
    tmp_path: Path, prompts: list[list[int]], plain: list[list[int]]
) -> None:
    """While the worker is dead a bit in every fifth page of the files is flipped, and the last
    quarter of the blocks is cut off."""

    async def before(worker: Worker) -> None:
        await fill(worker, prompts, plain)

    async def after(worker: Worker) -> None:
        assert wrong(await ask_all(worker, prompts[FAMILIES:]), plain[FAMILIES:]) == 0
        await until(lambda: counts_of(worker).store_disk_damaged > 0)

    play(config(tmp_path), before)
    draw = random.Random(4)
    (path,) = (tmp_path / "kv").rglob("*.kv")
    data = bytearray(path.read_bytes())
    for page in range(0, len(data), 5 * 4096):
        data[page + draw.randrange(4096)] ^= 1 << draw.randrange(8)
    path.write_bytes(data[: PREFIXES * 3 // 4 * (BLOCK_BYTES + 4096) + 999])
    play(config(tmp_path), after)


def test_a_disk_that_cannot_be_used_costs_nothing_but_the_tier(
    tmp_path: Path, prompts: list[list[int]], plain: list[list[int]]
) -> None:
    (tmp_path / "kv").write_text("no folder")

    async def work(worker: Worker) -> None:
        for some in (slice(FAMILIES), slice(FAMILIES, None)):
            assert wrong(await ask_all(worker, prompts[some]), plain[some]) == 0
        await until(lambda: counts_of(worker).store_disk_off == 1)
        await until(lambda: counts_of(worker).store_read > 0)

    play(config(tmp_path), work)
