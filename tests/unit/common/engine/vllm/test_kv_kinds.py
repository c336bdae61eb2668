"""Models whose KV is not handed over are known by their config.json."""

from __future__ import annotations

from typing import Any

import pytest

from common.engine.vllm.kv_kinds import why_kv_stays


@pytest.mark.parametrize(
    ("config", "named"),
    [
        ({"architectures": ["DeepseekV32ForCausalLM"]}, "an indexer"),
        ({"architectures": ["DeepseekV3ForCausalLM"], "index_topk": 2048}, "an indexer"),
        ({"architectures": ["Glm4MoeLiteForCausalLM"], "index_topk": None}, ""),
        ({"architectures": ["DeepseekV3ForCausalLM"]}, ""),
        ({"architectures": ["PanguUltraMoEForCausalLM"], "param_sink_number": 0}, ""),
        ({"architectures": ["PanguUltraMoEForCausalLM"], "param_sink_number": 128}, "sinks"),
        ({"architectures": ["WhisperForConditionalGeneration"]}, "cross attention"),
        ({"architectures": ["LlamaForCausalLM"], "is_causal": False}, "both directions"),
        ({"architectures": ["LlamaForCausalLM"], "is_causal": True}, ""),
        ({"architectures": ["GptOssForCausalLM"]}, ""),
        ({}, ""),
    ],
)
@pytest.mark.parametrize("inside", [False, True])
def test_what_is_kept_is_told_from_the_configuration(
    config: dict[str, Any], named: str, inside: bool
) -> None:
    """Also from the configuration of the text model inside one of images."""
    sentence = why_kv_stays({"text_config": config} if inside else config)
    assert named in sentence
    assert bool(sentence) == bool(named)
    assert not sentence or sentence.endswith("or serve this one with `vllm serve`")
