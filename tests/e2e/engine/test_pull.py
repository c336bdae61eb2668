"""Prompts whose beginning another worker's store holds: pulled instead of computed, by a prefill
worker for its D and by a decode worker for itself, their tokens equal those of one plain vLLM."""

from __future__ import annotations

import asyncio
import random
import secrets
from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path

import msgspec
import numpy as np
import pytest

from common.config import from_mapping
from common.engine.open import open_engine
from common.engine.port import EngineRequest
from common.identity import is_pull
from common.kv.messages import KvDone
from common.kv.store.arena import Arena
from common.kv.store.table import BlockName
from common.messages import KvCounts, KvSource, Role, Sampling
from common.process.lifecycle import Tasks
from tests.e2e.engine.pair import ANSWER_MS, ENGINE, GREEDY, LOAD_TIMEOUT_MS, Result, Worker, until
from tests.e2e.prompts import BLOCK, FIRST_ID, LAST_ID
from tests.e2e.reference import plain_answers
from tests.rigs import messages

pytestmark = pytest.mark.timeout(300)

PREFIX_BLOCKS, PREFIXES = 12, 4
PREFIX = PREFIX_BLOCKS * BLOCK
LAST = Sampling(max_tokens=1, temperature=0.0, ignore_eos=True)


def text(draw: random.Random, length: int) -> list[int]:
    return [draw.randint(FIRST_ID, LAST_ID) for _ in range(length)]


def make_prompts() -> list[list[list[int]]]:
    """For each prefix four prompts that begin with it."""
    draw = random.Random(33)
    prefixes = [text(draw, PREFIX) for _ in range(PREFIXES)]
    return [[prefix + text(draw, draw.randint(2, 300)) for _ in range(4)] for prefix in prefixes]


@pytest.fixture(scope="module")
def prompts() -> list[list[list[int]]]:
    return make_prompts()


@pytest.fixture(scope="module")
def plain(prompts: list[list[list[int]]]) -> list[list[list[int]]]:
    flat = plain_answers([prompt for family in prompts for prompt in family], GREEDY.max_tokens)
    assert np.mean([len(set(tokens)) for tokens in flat]) > 8, "the model repeats itself"
    return [flat[at : at + 4] for at in range(0, len(flat), 4)]


class Fleet:
    """Two prefill workers and a decode worker with stores, and a decode worker that keeps no
    prefixes, so that all KV of a prompt is handed to it."""

    def __init__(self, folder: Path) -> None:
        kv = {"load_timeout_ms": LOAD_TIMEOUT_MS, "answer_ms": ANSWER_MS}
        stores = {"engine": ENGINE, "kv": {**kv, "store": {"ram_mib": 128}}}
        bare = {"engine": {**ENGINE, "prefix_caching": False}, "kv": kv}
        config = from_mapping(
            {
                "fleet": {"run_dir": str(folder)},
                "model": {"path": "baton-tiny", "dtype": "float32", "max_model_len": 4096},
                "prefill": {"p0": stores, "p1": stores},
                "decode": {"d0": bare, "d1": stores},
            }
        )
        roles = {"p0": Role.PREFILL, "p1": Role.PREFILL, "d0": Role.DECODE, "d1": Role.DECODE}
        self.workers = {
            name: Worker(open_engine(config, role, name, f"inc-{name}"))
            for name, role in roles.items()
        }
        self._count = 0

    def source(self, name: str, blocks: int, **changes: str) -> KvSource:
        info = self.workers[name].engine.info
        source = KvSource(
            name=name,
            incarnation=f"inc-{name}",
            fingerprint=info.fingerprint,
            kv_address=info.kv_address,
            tokens=blocks * BLOCK,
        )
        return msgspec.structs.replace(source, **changes)

    async def by_p(self, name: str, prompt: list[int], source: KvSource | None = None) -> Result:
        """This prefill worker computes the prompt and hands it to d0."""
        prefill, decode, request_id = self.workers[name], self.workers["d0"], self.request_id()
        info = prefill.engine.info
        ticket = messages.ticket(
            request_id,
            0,
            secret=secrets.token_bytes(16),
            fingerprint=info.fingerprint,
            kv_address=info.kv_address,
            lease_ms=60_000.0,
        )
        ticket = msgspec.structs.replace(ticket, prefill=name, prefill_incarnation=f"inc-{name}")
        at_p = EngineRequest(request_id, 0, Role.PREFILL, prompt, LAST, ticket)
        await prefill.add(replace(at_p, source=source))
        result = await decode.add(EngineRequest(request_id, 0, Role.DECODE, prompt, GREEDY, ticket))
        await asyncio.wait_for(result.done.wait(), 60)
        assert (await decode.kv_end(request_id, "receive")).error == ""
        return result

    async def by_d(self, prompt: list[int], source: KvSource | None = None) -> Result:
        """d1 computes the prompt itself."""
        request = EngineRequest(self.request_id(), 0, Role.DECODE, prompt, GREEDY)
        result = await self.workers["d1"].add(replace(request, source=source))
        await asyncio.wait_for(result.done.wait(), 60)
        return result

    def request_id(self) -> str:
        self._count += 1
        return f"req{self._count}"

    def pulled(self, name: str) -> list[KvDone]:
        """How the pulls of this worker ended."""
        ends = self.workers[name].kv.items()
        return [end for (request_id, _, _), end in ends if is_pull(request_id)]

    def counts(self, name: str) -> KvCounts:
        status = self.workers[name].engine.kv_status()
        return status.counts if status is not None else KvCounts()


def play(folder: Path, work: Callable[[Fleet], Awaitable[None]]) -> None:
    fleet = Fleet(folder)

    async def body() -> None:
        tasks = Tasks()
        for name, worker in fleet.workers.items():
            tasks.start(name, worker.listen())
        await work(fleet)
        for name in ("p0", "p1", "d0", "d1"):
            await fleet.workers[name].empty(30.0)
        await tasks.cancel_all()
        for worker in fleet.workers.values():
            await worker.engine.close()

    asyncio.run(body())


async def stored(fleet: Fleet, blocks: int) -> None:
    await until(lambda: fleet.counts("p0").store_held >= blocks, 60.0)


def test_what_p0_computed_is_pulled_by_p1_and_by_d1_and_is_the_same(
    tmp_path: Path, prompts: list[list[list[int]]], plain: list[list[list[int]]]
) -> None:
    async def work(fleet: Fleet) -> None:
        for family, tokens in zip(prompts, plain, strict=True):
            assert (await fleet.by_p("p0", family[0])).tokens == tokens[0]
        await stored(fleet, PREFIXES * PREFIX_BLOCKS)
        steps = fleet.workers["p0"].batches
        source = fleet.source("p0", PREFIX_BLOCKS)
        for family, tokens in zip(prompts, plain, strict=True):
            result = await fleet.by_p("p1", family[1], source)
            assert result.tokens == tokens[1]
            assert (await fleet.by_d(family[2], source)).tokens == tokens[2]
        for name in ("p1", "d1"):
            ends = fleet.pulled(name)
            assert [(end.error, end.report.blocks) for end in ends] == PREFIXES * [
                ("", PREFIX_BLOCKS)
            ]
        assert fleet.workers["p0"].batches == steps, "the holder's engine made a step"
        served = 2 * PREFIXES * PREFIX_BLOCKS
        await until(lambda: fleet.counts("p0").store_served == served, 30.0)
        # What was pulled is in the engine's cache and in the store of who pulled it.
        assert (await fleet.by_p("p1", prompts[0][3], source)).tokens == plain[0][3]
        assert len(fleet.pulled("p1")) == PREFIXES
        onward = fleet.source("p1", PREFIX_BLOCKS)
        await until(lambda: fleet.counts("p1").store_held >= PREFIXES * PREFIX_BLOCKS, 60.0)
        assert (await fleet.by_d(prompts[1][3], onward)).tokens == plain[1][3]

    play(tmp_path, work)


@pytest.mark.long
def test_hints_that_are_wrong_cost_a_look_up_and_no_token(
    tmp_path: Path, prompts: list[list[list[int]]], plain: list[list[list[int]]]
) -> None:
    async def work(fleet: Fleet) -> None:
        assert (await fleet.by_p("p0", prompts[0][0])).tokens == plain[0][0]
        await stored(fleet, PREFIX_BLOCKS)
        too_long = fleet.source("p0", PREFIX_BLOCKS + 9)
        assert len(prompts[0][2]) > PREFIX + BLOCK, "more is wanted than p0 has"
        assert (await fleet.by_p("p1", prompts[0][2], too_long)).tokens == plain[0][2]
        asked, got = fleet.pulled("p1")[-1], fleet.counts
        assert (asked.error, asked.report.blocks) == ("", PREFIX_BLOCKS), "the leading run came"
        await until(lambda: got("p1").pulls_failed == 1, 30.0)
        wrong = (
            fleet.source("p0", PREFIX_BLOCKS),
            fleet.source("p0", PREFIX_BLOCKS, incarnation="inc-older"),
            fleet.source("p0", PREFIX_BLOCKS, kv_address="127.0.0.1:9"),
            fleet.source("p0", PREFIX_BLOCKS, fingerprint="another"),
        )
        for at, source in enumerate(wrong):
            result = await fleet.by_p("p1", prompts[1 + at % 3][at], source)
            assert result.tokens == plain[1 + at % 3][at]
        assert all(end.error for end in fleet.pulled("p1")[2:])

    play(tmp_path, work)


@pytest.mark.long
def test_kv_that_is_pulled_is_what_the_tokens_are_made_of(
    tmp_path: Path,
    prompts: list[list[list[int]]],
    plain: list[list[list[int]]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The control: damage that nobody judges changes the text."""

    def believing(self: Arena, slot: int, name: BlockName) -> bool:
        return True

    original = Arena.write

    def damaging(self: Arena, *given: object) -> None:
        original(self, *given)  # type: ignore[arg-type]
        self.bytes.view(np.float32)[:] += 0.5

    monkeypatch.setattr(Arena, "holds", believing)
    monkeypatch.setattr(Arena, "write", damaging)

    async def work(fleet: Fleet) -> None:
        assert (await fleet.by_p("p0", prompts[0][0])).tokens == plain[0][0]
        await stored(fleet, PREFIX_BLOCKS)
        source = fleet.source("p0", PREFIX_BLOCKS)
        assert (await fleet.by_p("p1", prompts[0][1], source)).tokens != plain[0][1]

    play(tmp_path, work)
