"""The engine arguments of which the table says that they work with a handoff, all in one pair."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from common.engine.vllm.argument_table import WORKS
from tests.e2e.engine.pair import Pair, make_config, play

TOGETHER: dict[str, Any] = {
    "attention_backend": "CPU_ATTN",
    "disable_log_stats": True,
    "enable_chunked_prefill": True,
    "enforce_eager": True,
    "generation_config": "vllm",
    "gpu_memory_utilization": 0.5,
    "hf_overrides": {"rope_parameters": {"rope_type": "default", "rope_theta": 5000.0}},
    "load_format": "safetensors",
    "logprobs_mode": "raw_logits",
    "long_prefill_token_threshold": 256,
    "max_logprobs": 5,
    "num_gpu_blocks_override": 64,
    "optimization_level": 0,
    "override_generation_config": {"temperature": 0.5},
    "scheduling_policy": "priority",
    "seed": 7,
    "tokenizer_mode": "hf",
}
#: By argument, the test in which a fleet or a pair has it.
ELSEWHERE = {
    "enable_lora": "tests/e2e/engine/test_adapters.py",
    "max_cpu_loras": "tests/e2e/engine/test_adapters.py",
    "max_lora_rank": "tests/e2e/engine/test_adapters.py",
    "max_loras": "tests/e2e/engine/test_adapters.py",
    "tensor_parallel_size": "tests/e2e/engine/test_tensor_parallel.py",
    "tokenizer": "tests/e2e/test_engine_args.py",
    "trust_remote_code": "tests/e2e/test_engine_args.py",
    "revision": "tests/unit/common/engine/vllm/test_model_check.py",
}
PROMPT = [33 + (index * 7919) % 90 for index in range(700)]


def test_each_argument_that_works_is_tried() -> None:
    assert sorted([*TOGETHER, *ELSEWHERE]) == sorted(WORKS)
    root = Path(__file__).parents[3]
    for name, test in ELSEWHERE.items():
        assert name in (root / test).read_text().lower(), name


@pytest.mark.timeout(180)
def test_a_prompt_is_handed_over_with_all_of_them(tmp_path: Path) -> None:
    async def work(pair: Pair) -> None:
        handed, done = await pair.hand_over(PROMPT)
        assert not handed.error
        assert done.report.blocks > 0
        assert handed.tokens == (await pair.alone(PROMPT)).tokens

    play(make_config(tmp_path, {"args": TOGETHER}), work)
