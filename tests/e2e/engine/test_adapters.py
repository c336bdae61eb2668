"""LoRA adapters through a handoff, the store, a pull and a move: the tokens of a plain engine that
has the same adapters, and no KV of one adapter under another, or under none."""

from __future__ import annotations

import asyncio
import random
import shutil
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

import pytest

from common.engine.port import EngineRequest
from common.errors import BatonError, Code
from common.identity import is_pull
from common.messages import KvSource, Role, Sampling
from tests.e2e.engine import test_store_disk
from tests.e2e.engine.pair import Pair, Result, Worker, make_config, play, until
from tests.e2e.engine.test_moves import moved
from tests.e2e.engine.test_store import CACHE_MIB, counts_of
from tests.e2e.prompts import BLOCK, prompts
from tests.e2e.reference import plain_adapter_answers
from tests.rigs.adapters import make_adapter

pytestmark = pytest.mark.timeout(600)

NAMES = ("first", "second")
TOKENS = 12
SAMPLING = Sampling(max_tokens=TOKENS, temperature=0.0, ignore_eos=True)
PROMPTS = prompts(4, edges=(5, 128, 129, 300))
"""The same ones with each adapter and without, so that equal prefixes meet in every cache."""

ARGUMENTS = {"enable_lora": True, "max_loras": 3}
BLOCKS = 4
PREFIX = BLOCKS * BLOCK
LONGER = Sampling(max_tokens=32, temperature=0.0, ignore_eos=True)


def one_family() -> list[list[int]]:
    """Prompts that begin with the same whole blocks."""
    draw = random.Random(17)
    texts = [[draw.randint(10, 250) for _ in range(length)] for length in (PREFIX, 40, 70, 90)]
    return [texts[0] + tail for tail in texts[1:]]


FAMILY = one_family()


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    root = tmp_path_factory.mktemp("adapters")
    return {name: make_adapter(root / name, seed) for seed, name in enumerate(NAMES, 1)}


async def load(pair: Pair, folders: dict[str, Path]) -> dict[str, str]:
    """On both engines. The ids, by name; no adapter has an empty one."""
    ids = await load_on(pair.prefill, folders.items())
    assert await load_on(pair.decode, folders.items()) == ids
    return ids


async def load_on(worker: Worker, folders: Iterable[tuple[str, Path]]) -> dict[str, str]:
    for name, path in folders:
        await worker.engine.load_adapter(name, str(path))
    ids = {status.id.partition("@")[0]: status.id for status in worker.engine.adapters()}
    return {"": "", **ids}


async def start(pair: Pair, prompt: list[int], adapter: str) -> tuple[EngineRequest, Result]:
    at_p, at_d = (replace(r, adapter=adapter) for r in pair.requests(prompt, SAMPLING))
    await pair.prefill.add(at_p)
    return at_p, await pair.decode.add(at_d)


def test_base_and_two_adapters_at_once_answer_as_a_plain_engine_does(
    tmp_path: Path, folders: dict[str, Path]
) -> None:
    expected = plain_adapter_answers(PROMPTS, TOKENS, {"": None, **folders})
    assert len({str(tokens) for tokens in expected.values()}) == len(expected)

    async def work(pair: Pair) -> None:
        ids = await load(pair, folders)
        asked = [(name, nth) for nth in range(len(PROMPTS)) for name in ids]
        begun = [(name, nth, await start(pair, PROMPTS[nth], ids[name])) for name, nth in asked]
        for name, nth, (request, result) in begun:
            await asyncio.wait_for(result.done.wait(), 60)
            assert result.tokens == expected[name][nth], (name, len(PROMPTS[nth]))
            await pair.prefill.kv_end(request.request_id, "send")
            end = await pair.decode.kv_end(request.request_id, "receive")
            assert not end.error
        # Once more, one at a time: what each finds cached is its own.
        for name, nth in asked:
            _, result = await start(pair, PROMPTS[nth], ids[name])
            await asyncio.wait_for(result.done.wait(), 60)
            assert result.tokens == expected[name][nth], (name, len(PROMPTS[nth]))

    arguments = {"enable_lora": True, "max_loras": len(NAMES)}
    play(make_config(tmp_path, {"args": arguments}), work)


def test_what_cannot_be_served_harms_nothing_that_runs(
    tmp_path: Path, folders: dict[str, Path]
) -> None:
    """More adapters than slots, a file that changes, one that is damaged, an unknown one."""
    changing = make_adapter(tmp_path / "changing", 3)

    async def work(pair: Pair) -> None:
        engine = pair.decode.engine
        ids = await load(pair, {**folders, "changing": changing})
        resident = {s.id: s.resident for s in engine.adapters()}
        assert sorted(resident.values()) == [False, True, True]
        assert not resident[ids["first"]]
        make_adapter(changing, 4)
        first = [await start(pair, PROMPTS[3], ids[name]) for name in ("first", "second")]
        with pytest.raises(BatonError) as refused:
            await start(pair, PROMPTS[3], ids["changing"])
        assert refused.value.code is Code.ADAPTER_NOT_HELD
        assert "its files changed" in refused.value.message
        with pytest.raises(BatonError, match="does not have the adapter 'other'"):
            await start(pair, PROMPTS[3], "other@0")
        weights = changing / "adapter_model.safetensors"
        weights.write_bytes(weights.read_bytes()[:5000])
        with pytest.raises(BatonError, match="is damaged"):
            await engine.load_adapter("changing", str(changing))
        shutil.rmtree(changing)
        with pytest.raises(BatonError, match="there is no folder"):
            await engine.load_adapter("changing", str(changing))
        for _, result in first:
            await asyncio.wait_for(result.done.wait(), 60)
            assert len(result.tokens) == TOKENS
        (fault,) = [status for status in engine.adapters() if status.error]
        assert fault.id == "changing"
        await engine.unload_adapter("first")
        with pytest.raises(BatonError, match="does not have the adapter 'first'"):
            await start(pair, PROMPTS[3], ids["first"])

    arguments = {"enable_lora": True, "max_loras": 2, "max_cpu_loras": 2, "max_lora_rank": 16}
    play(make_config(tmp_path, {"args": arguments}), work)


@pytest.fixture(scope="module")
def other(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Other files, which will be given the name of an adapter that there was before."""
    return make_adapter(tmp_path_factory.mktemp("adapters") / "other", 3)


@pytest.fixture(scope="module")
def plain(folders: dict[str, Path], other: Path) -> dict[str, list[list[int]]]:
    """By adapter, what a plain engine makes of the family."""
    named = {"": None, **folders, "other": other}
    tokens = plain_adapter_answers(FAMILY, LONGER.max_tokens, named)
    assert len({str(of_one) for of_one in tokens.values()}) == len(tokens)
    return tokens


async def ask(
    worker: Worker, key: str, nth: int, adapter: str, source: KvSource | None = None
) -> Result:
    """The worker computes the prompt itself; what it shares with others may come from any cache."""
    request = EngineRequest(key, 0, Role.DECODE, FAMILY[nth], LONGER, adapter=adapter)
    result = await worker.add(replace(request, source=source))
    await asyncio.wait_for(result.done.wait(), 60)
    assert not result.error
    return result


async def forget(worker: Worker) -> None:
    """The engine's cache is filled with something else; the store is not asked."""
    for nth in range(4):
        filler = [nth + 1, *(at % 240 + 1 for at in range(1_900))]
        one = Sampling(max_tokens=1, temperature=0.0, ignore_eos=True)
        request = EngineRequest(f"filler{nth}", 0, Role.DECODE, filler, one, None, f"salt{nth}")
        result = await worker.add(request)
        await asyncio.wait_for(result.done.wait(), 60)


@pytest.mark.long
def test_kv_in_a_store_is_loaded_pulled_and_moved_for_its_own_adapter_alone(
    tmp_path: Path, folders: dict[str, Path], plain: dict[str, list[list[int]]]
) -> None:
    """`prefill` computes a prefix with the first adapter, and plays the worker that streams leave
    and whose store `decode` pulls from."""

    async def work(pair: Pair) -> None:
        ids, home, away = await load(pair, folders), pair.prefill, pair.decode
        assert (await ask(home, "a", 0, ids["first"])).tokens == plain["first"][0]
        await until(lambda: counts_of(home).store_held >= BLOCKS)
        info = home.engine.info
        source = KvSource(
            name="p0",
            incarnation="inc-p0",
            fingerprint=info.fingerprint,
            kv_address=info.kv_address,
            tokens=PREFIX,
        )
        for name in ("second", "", "first"):
            result = await ask(away, f"pull-{name}", 1, ids[name], source=source)
            assert result.tokens == plain[name][1], name
            assert (result.cached >= PREFIX) is (name == "first"), name
        pulled = [end.report.blocks for (of, _, _), end in away.kv.items() if is_pull(of)]
        assert sum(pulled) == BLOCKS, pulled
        await forget(home)
        before = counts_of(home).store_read
        for name in ("second", "", "first"):
            result = await ask(home, f"store-{name}", 2, ids[name])
            assert result.tokens == plain[name][2], name
            assert (result.cached >= PREFIX) is (name == "first"), name
        await until(lambda: counts_of(home).store_read == before + BLOCKS)
        ends = await asyncio.gather(
            *(moved(pair, FAMILY[0], LONGER, cut=4, adapter=of) for of in ids.values())
        )
        for name, (made, after) in zip(ids, ends, strict=True):
            assert made + after.tokens == plain[name][0], name
            assert after.cached == len(FAMILY[0]) + len(made) - 1, "its KV came along"

    engine = {"args": ARGUMENTS, "kv_cache_mib": CACHE_MIB}
    play(make_config(tmp_path, engine, store={"ram_mib": 128}), work)


def test_kv_on_the_disk_is_found_after_kill_9_for_the_adapter_with_the_same_files(
    tmp_path: Path, folders: dict[str, Path], other: Path, plain: dict[str, list[list[int]]]
) -> None:
    """The next engine has the adapters under other numbers, and at first other files under the name
    of the first one."""

    async def before(worker: Worker) -> None:
        ids = await load_on(worker, folders.items())
        assert (await ask(worker, "a", 0, ids["first"])).tokens == plain["first"][0]
        await until(lambda: counts_of(worker).store_disk_written >= BLOCKS)

    async def after(worker: Worker) -> None:
        ids = await load_on(worker, [("second", folders["second"]), ("first", other)])
        for name, is_as in (("second", "second"), ("", ""), ("first", "other")):
            result = await ask(worker, f"b-{name}", 1, ids[name])
            assert (result.tokens, result.cached) == (plain[is_as][1], 0), is_as
        assert counts_of(worker).store_disk_read == 0
        await worker.engine.unload_adapter("first")
        again = await load_on(worker, [("first", folders["first"])])
        result = await ask(worker, "c", 2, again["first"])
        assert result.tokens == plain["first"][2]
        assert result.cached >= PREFIX
        await until(lambda: counts_of(worker).store_disk_read == BLOCKS)

    config = test_store_disk.config(tmp_path, args=ARGUMENTS)
    test_store_disk.play(config, before)
    test_store_disk.play(config, after)
