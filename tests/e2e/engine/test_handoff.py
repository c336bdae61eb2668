"""Prefill on one vLLM, decode on another: the tokens of one plain vLLM, nothing computed twice."""

from __future__ import annotations

import asyncio
import random
from pathlib import Path

import numpy as np
import pytest

from common.kv.checksum.definition import Bytes, Sum
from common.kv.checksum.header import HEADER_BYTES
from common.kv.checksum.kernel import sum_of
from common.kv.layout import HostMemory
from common.kv.messages import KvDone
from common.messages import Sampling
from tests.e2e.engine.pair import GREEDY, Pair, Result, Run, make_config, play
from tests.e2e.prompts import prompts
from tests.e2e.reference import plain_answers

pytestmark = pytest.mark.timeout(300)

MODEL = {"layers": 4, "kv_heads": 4, "head_dim": 32, "block_tokens": 128, "dtype_bytes": 4}


def kv_bytes(blocks: int) -> int:
    m = MODEL
    token_bytes = m["layers"] * m["kv_heads"] * m["head_dim"] * m["dtype_bytes"] * 2
    return token_bytes * m["block_tokens"] * blocks


@pytest.fixture(scope="module")
def texts() -> list[list[int]]:
    return prompts(48)


@pytest.fixture(scope="module")
def plain(texts: list[list[int]]) -> list[list[int]]:
    """What one vLLM engine without any of our code answers."""
    tokens = plain_answers(texts, GREEDY.max_tokens)
    assert np.mean([len(set(one)) for one in tokens]) > 8, "the model repeats itself"
    return tokens


def test_tokens_equal_one_plain_engine_one_at_a_time(
    run: Run, texts: list[list[int]], plain: list[list[int]]
) -> None:
    async def work(pair: Pair) -> None:
        for prompt, expected in zip(texts[:20], plain[:20], strict=True):
            result, end = await pair.hand_over(prompt, salt=pair.request_id())
            assert result.tokens == expected, len(prompt)
            assert result.finish == "length"
            check_moved(prompt, result, end)
        await pair.prefill.empty()
        await pair.decode.empty()

    run(work)


def check_moved(prompt: list[int], result: Result, end: KvDone) -> None:
    """The bytes of exactly the blocks that D lacked came, and D computed only the last token."""
    assert end.error == "", end.message
    blocks = -(-(len(prompt) - 1) // MODEL["block_tokens"])
    assert end.report.blocks == blocks
    assert end.report.payload_bytes == kv_bytes(blocks)
    assert end.report.wire_bytes == kv_bytes(blocks) + HEADER_BYTES * end.report.messages
    assert end.report.retries == 0
    assert result.cached == len(prompt) - 1


def test_tokens_equal_one_plain_engine_all_at_once(
    run: Run, texts: list[list[int]], plain: list[list[int]]
) -> None:
    """Prefix caches shared, chunks of several prompts mixed in a step."""

    async def work(pair: Pair) -> None:
        answers = await asyncio.gather(*(pair.hand_over(prompt) for prompt in texts))
        for prompt, (result, end), expected in zip(texts, answers, plain, strict=True):
            assert result.tokens == expected, len(prompt)
            assert end.error == "", end.message
            assert result.cached == len(prompt) - 1
        await pair.prefill.empty()
        await pair.decode.empty()

    run(work)


def test_a_prefix_that_d_has_is_not_sent_again(run: Run) -> None:
    async def work(pair: Pair) -> None:
        draw = random.Random(11)
        head = [draw.randint(10, 250) for _ in range(512)]
        first = head + [draw.randint(10, 250) for _ in range(50)]
        second = head + [draw.randint(10, 250) for _ in range(100)]
        await pair.hand_over(first, salt="turns")
        result, end = await pair.hand_over(second, salt="turns")
        assert end.report.blocks == 1
        assert end.report.payload_bytes == kv_bytes(1)
        assert result.cached == len(second) - 1
        assert result.tokens == (await pair.alone(second)).tokens

    run(work)


def test_sampled_text_and_stops_are_ds_own(run: Run) -> None:
    async def work(pair: Pair) -> None:
        draw = random.Random(12)
        prompt = [draw.randint(10, 250) for _ in range(300)]
        seeded = Sampling(max_tokens=24, temperature=1.0, seed=5, ignore_eos=True)
        result, _ = await pair.hand_over(prompt, seeded, salt="seeded")
        assert result.tokens == (await pair.alone(prompt, seeded)).tokens
        stop = result.tokens[7]
        stopping = Sampling(
            max_tokens=24, temperature=1.0, seed=5, ignore_eos=True, stop_token_ids=(stop,)
        )
        stopped, _ = await pair.hand_over(prompt, stopping, salt="stopping")
        assert stopped.finish == "stop"
        assert stopped.tokens == result.tokens[: result.tokens.index(stop) + 1]

    run(work)


def test_without_p_the_prompt_is_computed_on_d_with_the_same_result(run: Run) -> None:
    """D waits for P while it computes another request. P gives the ticket up: the load fails, vLLM
    computes the prompt, the text is the same."""

    async def work(pair: Pair) -> None:
        draw = random.Random(13)
        prompt = [draw.randint(10, 250) for _ in range(400)]
        _, at_d = pair.requests(prompt, salt="lonely")
        result = await pair.decode.add(at_d)
        alone = await pair.alone(prompt)
        assert not result.tokens
        await pair.prefill.engine.abort(at_d.request_id, 0)
        end = await pair.decode.kv_end(at_d.request_id, "receive", 20)
        assert end.error == "kv_transfer_failed"
        await asyncio.wait_for(result.done.wait(), 20)
        assert result.cached == 0
        assert result.tokens == alone.tokens
        await pair.decode.empty()

    run(work)


def test_damaged_kv_changes_the_text(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The control: if KV were wrong after verification, the tests above would see it."""
    original = HostMemory.scatter

    def damaging(self: HostMemory, block_ids: list[int], data: Bytes, layers: range) -> Sum:
        damaged = data.copy()
        floats = damaged.view(np.float32)
        floats[: len(floats) // 2] += 0.5
        original(self, block_ids, damaged, layers)
        return sum_of(data)

    monkeypatch.setattr(HostMemory, "scatter", damaging)

    async def work(pair: Pair) -> None:
        changed = 0
        draw = random.Random(14)
        for length in (2, 100, 200, 500, 900):
            prompt = [draw.randint(10, 250) for _ in range(length)]
            result, end = await pair.hand_over(prompt)
            assert end.error == "", end.message
            changed += result.tokens != (await pair.alone(prompt)).tokens
        assert changed == 5

    play(make_config(tmp_path), work)
