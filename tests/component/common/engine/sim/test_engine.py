"""The simulated engine: same port, deterministic text, real handoffs, bounded blocks."""

from __future__ import annotations

import asyncio
import random
import subprocess
import sys
import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from common.config import Config, from_mapping
from common.engine.open import open_engine
from common.engine.port import EngineRequest
from common.engine.sim.engine import SimEngine
from common.errors import BatonError, Code
from common.kv.checksum.definition import Bytes, Sum
from common.kv.checksum.kernel import sum_of
from common.kv.layout import HostMemory
from common.messages import Role, Sampling
from tests.e2e.engine.pair import Pair, Result, until

SIM = {
    "kind": "sim",
    "block_tokens": 16,
    "max_num_batched_tokens": 64,
    "sim": {"prefill_tokens_per_s": 50_000.0, "decode_step_ms": 1.0, "kv_blocks": 64},
}
TEXT = Sampling(max_tokens=12, temperature=0.0)


def config(run_dir: Path) -> Config:
    return from_mapping(
        {
            "fleet": {"run_dir": str(run_dir)},
            "model": {"max_model_len": 1024},
            "prefill": {"p0": {"engine": SIM}},
            "decode": {"d0": {"engine": SIM}},
        }
    )


@pytest.fixture
async def pair(tmp_path: Path) -> AsyncIterator[Pair]:
    made = config(tmp_path)
    both = Pair(
        open_engine(made, Role.PREFILL, "p0", "inc-p0"),
        open_engine(made, Role.DECODE, "d0", "inc-d0"),
    )
    async with both:
        yield both
        for worker in (both.prefill, both.decode):
            assert isinstance(worker.engine, SimEngine)
            worker.engine._core.check_invariants()
    await both.prefill.engine.close()
    await both.decode.engine.close()


def prompt_of(length: int, seed: int = 1) -> list[int]:
    draw = random.Random(seed)
    return [draw.randint(10, 250) for _ in range(length)]


@pytest.mark.parametrize("length", [1, 2, 15, 16, 17, 33, 64, 65, 200, 700])
async def test_handed_over_text_equals_local_text(pair: Pair, length: int) -> None:
    prompt = prompt_of(length)
    result, end = await pair.hand_over(prompt, TEXT)
    assert end.error == ""
    assert end.report.blocks == -(-(length - 1) // 16)
    assert result.cached == length - 1
    assert result.tokens == (await pair.alone(prompt, TEXT)).tokens
    assert len(set(result.tokens)) > 4
    await pair.prefill.empty()
    await pair.decode.empty()


async def test_a_resumed_text_goes_on_as_if_never_interrupted(pair: Pair) -> None:
    prompt = prompt_of(100)
    whole = (await pair.alone(prompt, TEXT)).tokens
    for cut in (1, 5, 11):
        rest = Sampling(max_tokens=12 - cut)
        resumed, _ = await pair.hand_over(prompt + whole[:cut], rest)
        assert whole[:cut] + resumed.tokens == whole


async def test_it_sleeps_while_it_has_nothing_and_must_be_woken_for_a_request(pair: Pair) -> None:
    prompt, engine = prompt_of(100), pair.decode.engine
    text = (await pair.alone(prompt, TEXT)).tokens
    request = EngineRequest("r", 1, Role.DECODE, prompt, TEXT)
    await engine.add(request)
    assert not await engine.sleep()
    await engine.abort("r", 1)
    await pair.decode.empty()
    assert await engine.sleep()
    with pytest.raises(BatonError, match="an engine that sleeps"):
        await engine.add(EngineRequest("s", 1, Role.DECODE, prompt, TEXT))
    await engine.wake()
    assert (await pair.alone(prompt, TEXT)).tokens == text


async def test_a_stream_that_leaves_gets_its_last_step_and_goes_on_elsewhere(pair: Pair) -> None:
    name, prompt, engine = pair.request_id(), prompt_of(100), pair.prefill.engine
    long = Sampling(max_tokens=400, temperature=0.0)
    whole = (await pair.alone(prompt, long)).tokens
    result = await pair.prefill.add(EngineRequest(name, 0, Role.DECODE, prompt, long))
    await until(lambda: bool(result.tokens))
    made = len(result.tokens)
    engine.leave(name, 0)
    await until(lambda: f"{name}#0" in pair.prefill.left)
    assert result.tokens == whole[: made + 1]
    ticket, rest = pair.ticket(name, attempt=1), Sampling(max_tokens=len(whole) - made - 1)
    engine.hand_over(ticket, 0)
    ids = prompt + result.tokens
    after = await pair.decode.add(EngineRequest(name, 1, Role.DECODE, ids, rest, ticket))
    await asyncio.wait_for(after.done.wait(), 5)
    assert (result.tokens + after.tokens, after.cached) == (whole, len(ids) - 1)
    assert not (await pair.prefill.kv_end(name, "send")).error
    await pair.prefill.empty()


async def test_one_that_has_ended_does_not_leave(pair: Pair) -> None:
    await pair.alone(prompt_of(100), TEXT)
    (key,) = pair.decode.results
    request_id, _, attempt = key.rpartition("#")
    pair.decode.engine.leave(request_id, int(attempt))
    await pair.alone(prompt_of(50), TEXT)
    await pair.decode.empty()
    assert not pair.decode.left


async def test_seed_and_every_prompt_token_matter(pair: Pair) -> None:
    prompt = prompt_of(100)
    text = (await pair.alone(prompt, TEXT)).tokens
    other_seed = Sampling(max_tokens=12, seed=9)
    assert (await pair.alone(prompt, other_seed)).tokens != text
    for at in (0, 50, 99):
        changed = [*prompt[:at], prompt[at] ^ 1, *prompt[at + 1 :]]
        assert (await pair.alone(changed, TEXT)).tokens != text


@pytest.mark.parametrize("length", [17, 30, 33, 100])
async def test_one_wrong_byte_anywhere_changes_the_text(
    pair: Pair, monkeypatch: pytest.MonkeyPatch, length: int
) -> None:
    prompt = prompt_of(length)
    text = (await pair.alone(prompt, TEXT)).tokens
    original = HostMemory.scatter

    def damaging(self: HostMemory, block_ids: list[int], data: Bytes, layers: range) -> Sum:
        damaged = data.copy()
        damaged[-1] ^= 1
        original(self, block_ids, damaged, layers)
        return sum_of(data)

    monkeypatch.setattr(HostMemory, "scatter", damaging)
    result, end = await pair.hand_over(prompt, TEXT)
    assert end.error == ""
    assert result.tokens != text


async def test_a_failed_handoff_is_computed_on_d(pair: Pair) -> None:
    at_p, at_d = pair.requests(prompt_of(100), TEXT)
    await pair.prefill.engine.abort(at_p.request_id, 0)
    result = await pair.decode.add(at_d)
    await asyncio.wait_for(result.done.wait(), 5)
    assert (await pair.decode.kv_end(at_d.request_id, "receive")).error
    assert result.cached == 0
    assert result.tokens == (await pair.alone(prompt_of(100), TEXT)).tokens


async def test_more_than_fits_waits_its_turn_and_nothing_is_lost(pair: Pair) -> None:
    prompts = [prompt_of(300, seed) for seed in range(30)]
    answers = await asyncio.gather(*(pair.hand_over(prompt, TEXT) for prompt in prompts))
    for prompt, (result, end) in zip(prompts, answers, strict=True):
        assert end.error == ""
        assert result.tokens == (await pair.alone(prompt, TEXT)).tokens
    await pair.prefill.empty()
    await pair.decode.empty()


@pytest.mark.parametrize("after_ms", [0, 1, 3, 8, 20])
async def test_aborts_at_any_moment_free_everything(pair: Pair, after_ms: int) -> None:
    """By the aborts, that is: the lease and the load timeout are longer than 10 s."""
    requests = [pair.requests(prompt_of(300, seed), TEXT) for seed in range(6)]
    for at_p, at_d in requests:
        await pair.prefill.add(at_p)
        await pair.decode.add(at_d)
    await asyncio.sleep(after_ms / 1000)
    start = time.monotonic()
    for at_p, at_d in requests:
        await pair.prefill.engine.abort(at_p.request_id, 0)
        await pair.decode.engine.abort(at_d.request_id, 0)
    await pair.prefill.empty()
    await pair.decode.empty()
    assert time.monotonic() - start < 10.0
    result, _ = await pair.hand_over(prompt_of(50), TEXT)
    assert result.finish == "length"


async def test_after_an_abort_no_output_comes(pair: Pair) -> None:
    request = EngineRequest("gone", 0, Role.DECODE, prompt_of(50), Sampling(max_tokens=500))
    result = await pair.decode.add(request)
    await until(lambda: len(result.tokens) > 3)
    await pair.decode.engine.abort("gone", 0)
    seen = len(result.tokens)
    later = await pair.alone(prompt_of(40), TEXT)
    assert len(later.tokens) > 1, "the engine has made further steps"
    assert len(result.tokens) <= seen + 1
    assert not result.done.is_set()


async def test_stop_tokens_end_a_text_after_min_tokens(pair: Pair) -> None:
    text = (await pair.alone(prompt_of(40), TEXT)).tokens
    stop = text[3]
    stopping = Sampling(max_tokens=12, stop_token_ids=(stop,))
    result: Result = await pair.alone(prompt_of(40), stopping)
    assert result.finish == "stop"
    assert result.tokens == text[: text.index(stop) + 1]


async def test_what_cannot_be_served_is_refused(pair: Pair) -> None:
    huge = Sampling(max_tokens=5000)
    cases = [
        (prompt_of(1024), TEXT, Code.CONTEXT_LENGTH_EXCEEDED),
        (prompt_of(10), huge, Code.CONTEXT_LENGTH_EXCEEDED),
        ([], TEXT, Code.INVALID_REQUEST),
    ]
    for prompt, sampling, code in cases:
        with pytest.raises(BatonError) as refused:
            await pair.decode.engine.add(EngineRequest("x", 0, Role.DECODE, prompt, sampling))
        assert refused.value.code == code


async def test_a_finished_prompt_is_held_until_its_lease_ends(pair: Pair) -> None:
    name = pair.request_id()
    ticket = pair.ticket(name, lease_ms=300)
    request = EngineRequest(name, 0, Role.PREFILL, prompt_of(100), TEXT, ticket)
    result = await pair.prefill.add(request)
    await asyncio.wait_for(result.done.wait(), 5)
    assert pair.prefill.engine.load().kv_used > 0
    assert (await pair.prefill.kv_end(name, "send")).error == Code.KV_TRANSFER_FAILED
    await pair.prefill.empty()


def test_it_starts_without_torch_or_vllm(tmp_path: Path) -> None:
    code = (
        "import sys, pathlib, time; start = time.monotonic()\n"
        "from tests.component.common.engine.sim.test_engine import config\n"
        "from common.engine.open import open_engine\n"
        "from common.messages import Role\n"
        f"open_engine(config(pathlib.Path({str(tmp_path)!r})), Role.PREFILL, 'p0', 'i')\n"
        "assert not {'torch', 'vllm', 'transformers'} & set(sys.modules)\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=30)
