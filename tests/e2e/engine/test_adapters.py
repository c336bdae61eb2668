"""LoRA adapters through a handoff: the tokens of a plain engine that has the same adapters."""

from __future__ import annotations

import asyncio
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from common.engine.port import EngineRequest
from common.errors import BatonError, Code
from common.messages import Sampling
from tests.e2e.engine.pair import Pair, Result, make_config, play
from tests.e2e.prompts import prompts
from tests.e2e.reference import plain_adapter_answers
from tests.rigs.adapters import make_adapter

pytestmark = pytest.mark.timeout(600)

NAMES = ("first", "second")
TOKENS = 12
SAMPLING = Sampling(max_tokens=TOKENS, temperature=0.0, ignore_eos=True)
PROMPTS = prompts(4, edges=(5, 128, 129, 300))
"""The same ones with each adapter and without, so that equal prefixes meet in every cache."""


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    root = tmp_path_factory.mktemp("adapters")
    return {name: make_adapter(root / name, seed) for seed, name in enumerate(NAMES, 1)}


async def load(pair: Pair, folders: dict[str, Path]) -> dict[str, str]:
    """On both engines. The ids, by name; no adapter has an empty one."""
    for worker in (pair.prefill, pair.decode):
        for name, path in folders.items():
            await worker.engine.load_adapter(name, str(path))
    ids = {status.id.partition("@")[0]: status.id for status in pair.decode.engine.adapters()}
    assert {s.id for s in pair.prefill.engine.adapters()} == set(ids.values())
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
