"""KV leaves while its prompt is still computed: by chunk, and by groups of layers in a chunk."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from common.config import KvConfig
from tests.e2e.engine.pair import Pair, make_config, play

pytestmark = pytest.mark.timeout(200)

CHUNK_TOKENS = 512
LENGTH = 3000
MODEL_LAYERS = 4


@pytest.mark.parametrize("layer_groups", [1, KvConfig().layer_groups])
def test_most_bytes_of_a_prompt_of_several_chunks_leave_before_its_prefill_ends(
    tmp_path: Path, layer_groups: int
) -> None:
    engine = {"max_num_batched_tokens": CHUNK_TOKENS}

    async def work(pair: Pair) -> None:
        await pair.hand_over([5] * 40)
        draw = random.Random(LENGTH)
        prompt = [draw.randint(10, 250) for _ in range(LENGTH)]
        result, end = await pair.hand_over(prompt)
        report = end.report
        overlap = report.early_bytes / report.payload_bytes
        print(
            f"layer_groups {layer_groups}, {LENGTH} tokens in chunks of {CHUNK_TOKENS}: "
            f"{report.messages} messages, {overlap:.0%} sent before the prefill ended, "
            f"first token after {result.seconds * 1000:.0f} ms"
        )
        assert end.error == ""
        assert result.tokens == (await pair.alone(prompt)).tokens
        assert overlap >= 0.7
        assert report.messages % (layer_groups or MODEL_LAYERS) == 0
        await pair.prefill.empty()
        await pair.decode.empty()

    play(make_config(tmp_path, engine, layer_groups=layer_groups), work)
