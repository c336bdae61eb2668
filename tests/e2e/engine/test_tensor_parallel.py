"""Two ranks hand over to two ranks, each its own heads, and to and from one rank that has them all;
the text is the one of D alone."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.engine.pair import GREEDY, Pair, make_config, play
from tests.e2e.engine.test_handoff import kv_bytes
from tests.e2e.engine.test_moves import moved

pytestmark = pytest.mark.timeout(240)

BLOCK_TOKENS = 128
CANONICAL_TOKENS = 16


def drawn(length: int) -> list[int]:
    draw = random.Random(length)
    return [draw.randint(10, 250) for _ in range(length)]


def engine(ranks: int, block_tokens: int = BLOCK_TOKENS) -> dict[str, Any]:
    return {
        "args": {"tensor_parallel_size": ranks},
        "max_num_batched_tokens": 512,
        "block_tokens": block_tokens,
    }


def test_each_rank_hands_over_to_its_own(tmp_path: Path) -> None:
    async def work(pair: Pair) -> None:
        assert len(pair.prefill.engine.info.kv_address.split(",")) == 2
        for length in (40, 700, 1500):
            prompt = drawn(length)
            result, end = await pair.hand_over(prompt)
            assert end.error == ""
            blocks = -(-(length - 1) // BLOCK_TOKENS)
            assert (end.report.blocks, end.report.payload_bytes) == (blocks, kv_bytes(blocks))
            assert result.cached == length - 1
            assert result.tokens == (await pair.alone(prompt)).tokens
        await pair.prefill.empty()
        await pair.decode.empty()

    play(make_config(tmp_path, engine(2)), work)


@pytest.mark.parametrize(("ours", "theirs"), [(1, 2), (2, 1)])
def test_one_rank_and_two_hand_over_to_each_other(ours: int, theirs: int, tmp_path: Path) -> None:
    """Between blocks of unlike size, too. A stream that leaves D goes back to P's ranks."""

    async def work(pair: Pair) -> None:
        p, d = pair.prefill.engine.info, pair.decode.engine.info
        assert [len(info.kv_address.split(",")) for info in (p, d)] == [ours, theirs]
        assert p.fingerprint != d.fingerprint
        assert p.capacity.kv_meaning == d.capacity.kv_meaning != ""
        bytes_of = {info.capacity.kv_canonical_bytes for info in (p, d)}
        assert bytes_of == {CANONICAL_TOKENS * kv_bytes(1) // BLOCK_TOKENS}, "over all ranks"
        for length in (2, 40, 700, 1500):
            prompt = drawn(length)
            result, end = await pair.hand_over(prompt)
            assert end.error == "", end.message
            blocks = -(-(length - 1) // CANONICAL_TOKENS)
            whole = blocks * CANONICAL_TOKENS * kv_bytes(1) // BLOCK_TOKENS
            assert (end.report.blocks, end.report.payload_bytes) == (blocks, whole)
            assert result.cached == length - 1
            assert result.tokens == (await pair.alone(prompt)).tokens
        made, after = await moved(pair, drawn(300), GREEDY)
        assert made + after.tokens == (await pair.alone(drawn(300))).tokens
        assert after.cached == 300 + len(made) - 1, "its KV moved, too"
        await pair.prefill.empty()
        await pair.decode.empty()

    play(make_config(tmp_path, engine(ours)), work, make_config(tmp_path, engine(theirs, 32)))
