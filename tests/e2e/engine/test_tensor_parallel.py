"""Two ranks hand over to two ranks, each its own heads, and the text is the one of D alone."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from tests.e2e.engine.pair import Pair, make_config, play
from tests.e2e.engine.test_handoff import kv_bytes

pytestmark = [pytest.mark.slow, pytest.mark.timeout(240)]

RANKS = 2
BLOCK_TOKENS = 128


def test_each_rank_hands_over_to_its_own(tmp_path: Path) -> None:
    engine = {"args": {"tensor_parallel_size": RANKS}, "max_num_batched_tokens": 512}

    async def work(pair: Pair) -> None:
        assert len(pair.prefill.engine.info.kv_address.split(",")) == RANKS
        for length in (40, 700, 1500):
            draw = random.Random(length)
            prompt = [draw.randint(10, 250) for _ in range(length)]
            result, end = await pair.hand_over(prompt)
            assert end.error == ""
            blocks = -(-(length - 1) // BLOCK_TOKENS)
            assert (end.report.blocks, end.report.payload_bytes) == (blocks, kv_bytes(blocks))
            assert result.cached == length - 1
            assert result.tokens == (await pair.alone(prompt)).tokens
        await pair.prefill.empty()
        await pair.decode.empty()

    play(make_config(tmp_path, engine), work)
