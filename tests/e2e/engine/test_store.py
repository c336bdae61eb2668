"""A small engine cache over a store: prompts that come out of it equal those of one plain vLLM."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from common.config import Config
from common.engine.port import EngineRequest
from common.kv.layout import Mark
from common.kv.store.arena import Arena
from common.kv.store.table import BlockCopy
from common.messages import KvCounts, Role
from tests.e2e.engine.pair import GREEDY, Pair, Result, Worker, make_config, play, until
from tests.e2e.prompts import BLOCK, FIRST_ID, LAST_ID
from tests.e2e.reference import plain_answers

pytestmark = pytest.mark.timeout(300)

FAMILIES, SIZE = 20, 10
PREFIX_BLOCKS = 4
#: Holds 45 blocks; the prefixes of all families have 80.
CACHE_MIB = 24
AT_ONCE = 4
#: 4 layers, 4 heads, K and V of 32 floats.
BLOCK_BYTES = 4 * 4 * 2 * 32 * 4 * BLOCK
Ask = Callable[[Pair, list[int]], Awaitable[Result]]


def make_prompts() -> list[list[int]]:
    """Families with a prefix of whole blocks each. Between two prompts of a family all others have
    their turn, so that the engine has let its prefix go."""
    draw = random.Random(21)

    def text(length: int) -> list[int]:
        return [draw.randint(FIRST_ID, LAST_ID) for _ in range(length)]

    prefixes = [text(PREFIX_BLOCKS * BLOCK) for _ in range(FAMILIES)]
    return [prefix + text(draw.randint(1, BLOCK - 1)) for _ in range(SIZE) for prefix in prefixes]


@pytest.fixture(scope="module")
def prompts() -> list[list[int]]:
    return make_prompts()


@pytest.fixture(scope="module")
def plain(prompts: list[list[int]]) -> list[list[int]]:
    """What one vLLM engine without any of our code answers."""
    tokens = plain_answers(prompts, GREEDY.max_tokens)
    assert np.mean([len(set(one)) for one in tokens]) > 8, "the model repeats itself"
    return tokens


def config(folder: Path, ram_mib: int = 128, **engine: Any) -> Config:
    engine = {"kv_cache_mib": CACHE_MIB, **engine}
    return make_config(folder, engine, store={"ram_mib": ram_mib})


async def computed_by_d(pair: Pair, prompt: list[int]) -> Result:
    """On D, without P; what it shares with others may come from any cache."""
    request = EngineRequest(pair.request_id(), 0, Role.DECODE, prompt, GREEDY, None, None)
    result = await pair.decode.add(request)
    await asyncio.wait_for(result.done.wait(), 60)
    return result


async def computed_by_p(pair: Pair, prompt: list[int]) -> Result:
    result, end = await pair.hand_over(prompt)
    assert end.error == "", end.message
    return result


async def ask_all(pair: Pair, ask: Ask, prompts: list[list[int]]) -> list[Result]:
    """Asks some at a time, in order."""
    room = asyncio.Semaphore(AT_ONCE)

    async def one(prompt: list[int]) -> Result:
        async with room:
            return await ask(pair, prompt)

    return await asyncio.gather(*(one(prompt) for prompt in prompts))


def counts_of(worker: Worker) -> KvCounts:
    """At most half a second old."""
    status = worker.engine.kv_status()
    return status.counts if status is not None else KvCounts()


def wrong(results: list[Result], plain: list[list[int]]) -> int:
    return sum(one.tokens != tokens for one, tokens in zip(results, plain, strict=True))


def test_prompts_out_of_the_store_equal_a_plain_engine(
    tmp_path: Path, prompts: list[list[int]], plain: list[list[int]]
) -> None:
    """Both workers have a store. P's serves what it computes for D; D's what it computes itself,
    out of what it was handed. Of the second to last prompt of each family the prefix comes from
    there."""
    wanted = (SIZE - 1) * FAMILIES * PREFIX_BLOCKS

    async def work(pair: Pair) -> None:
        results = await ask_all(pair, computed_by_p, prompts)
        assert wrong(results, plain) == 0
        await until(lambda: counts_of(pair.prefill).store_read >= 0.95 * wanted)
        assert counts_of(pair.decode).store_read == 0, "what P sends is not looked for"
        results = await ask_all(pair, computed_by_d, prompts)
        assert wrong(results, plain) == 0
        await until(lambda: counts_of(pair.decode).store_read >= 0.95 * wanted)
        for worker in (pair.prefill, pair.decode):
            assert counts_of(worker).store_damaged == 0
        assert [result.cached >= PREFIX_BLOCKS * BLOCK for result in results].count(False) < 10
        await pair.prefill.empty()
        await pair.decode.empty()

    play(config(tmp_path), work)


@pytest.mark.long
def test_a_store_that_is_too_small_and_a_full_engine_are_right_too(
    tmp_path: Path, prompts: list[list[int]], plain: list[list[int]]
) -> None:
    """Blocks are evicted from both while others are copied."""

    async def work(pair: Pair) -> None:
        shuffled = random.Random(3).sample(range(len(prompts)), len(prompts))
        asked = [computed_by_d(pair, prompts[at]) for at in shuffled]
        results = await asyncio.gather(*asked)
        assert wrong(list(results), [plain[at] for at in shuffled]) == 0
        await until(lambda: counts_of(pair.decode).store_evicted > 0)
        assert counts_of(pair.decode).store_held <= 16 * (1 << 20) // BLOCK_BYTES
        await pair.decode.empty()

    play(config(tmp_path, ram_mib=16), work)


@pytest.mark.long
def test_two_ranks_store_their_own_heads(
    tmp_path: Path, prompts: list[list[int]], plain: list[list[int]]
) -> None:
    """Each rank has half of every block, so half of the memory holds as many."""
    some, ranks = 3 * FAMILIES, {"tensor_parallel_size": 2}

    async def work(pair: Pair) -> None:
        results = await ask_all(pair, computed_by_d, prompts[:some])
        assert wrong(results, plain[:some]) == 0
        wanted = 2 * FAMILIES * PREFIX_BLOCKS
        await until(lambda: counts_of(pair.decode).store_read >= 0.95 * wanted)

    play(config(tmp_path, kv_cache_mib=CACHE_MIB // 2, args=ranks), work)


def test_damage_in_the_arena_is_found_and_computed_again(
    tmp_path: Path,
    prompts: list[list[int]],
    plain: list[list[int]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Every third block that is stored has one bit flipped."""
    original, written = Arena.write, []

    def flipping(
        self: Arena, copy: BlockCopy, after: Mark | None, done: Callable[[], None]
    ) -> None:
        original(self, copy, after, done)
        written.append(copy)
        if len(written) % 3 == 0:
            self.bytes[copy.slot * BLOCK_BYTES + len(written) % BLOCK_BYTES] ^= 4

    monkeypatch.setattr(Arena, "write", flipping)
    some = 5 * FAMILIES

    async def work(pair: Pair) -> None:
        for ask in (computed_by_p, computed_by_d):
            results = await ask_all(pair, ask, prompts[:some])
            assert wrong(results, plain[:some]) == 0
        await until(lambda: counts_of(pair.prefill).store_damaged > FAMILIES // 2)
        await until(lambda: counts_of(pair.decode).store_damaged > FAMILIES // 2)
        assert counts_of(pair.prefill).store_read > 0
        assert counts_of(pair.decode).store_read > 0

    play(config(tmp_path), work)


@pytest.mark.long
def test_damage_that_were_not_found_would_change_the_text(
    tmp_path: Path,
    prompts: list[list[int]],
    plain: list[list[int]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The control of the tests above."""
    original = Arena.read

    def believing(
        self: Arena, copy: BlockCopy, after: Mark | None, done: Callable[[bool], None]
    ) -> None:
        start = copy.slot * BLOCK_BYTES
        floats = self.bytes[start : start + BLOCK_BYTES].view(np.float32)
        floats[: len(floats) // 2] += 0.5
        original(self, copy, after, lambda whole: done(True))

    monkeypatch.setattr(Arena, "read", believing)

    async def work(pair: Pair) -> None:
        results = await ask_all(pair, computed_by_d, prompts[: 2 * FAMILIES])
        assert wrong(results[:FAMILIES], plain[:FAMILIES]) == 0
        assert wrong(results[FAMILIES:], plain[FAMILIES : 2 * FAMILIES]) == FAMILIES

    play(config(tmp_path), work)
