"""What cannot be handed over is refused by name, with what is supported; the rest is known as the
tokens that each KV cache group keeps."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from common.blocks import Kept, KvGroup
from common.engine.vllm.supported_models import (
    SUPPORTED,
    holds_k_and_v,
    kv_group,
    layer_spec,
    refuse_unsupported,
)
from common.errors import ConfigError

ATTENTION: dict[str, Any] = {
    "block_size": 16,
    "num_kv_heads": 2,
    "head_size": 8,
    "dtype": torch.float32,
}


def made(**changed: object) -> Any:
    model = SimpleNamespace(is_encoder_decoder=False)
    parallel = SimpleNamespace(
        pipeline_parallel_size=1, decode_context_parallel_size=1, prefill_context_parallel_size=1
    )
    for key, value in changed.items():
        setattr(parallel if hasattr(parallel, key) else model, key, value)
    return SimpleNamespace(model_config=model, parallel_config=parallel)


def spec(kind: str, **more: object) -> Any:
    from vllm.v1 import kv_cache_interface

    return getattr(kv_cache_interface, kind)(**ATTENTION, **more)


def state(**more: object) -> Any:
    from vllm.v1.kv_cache_interface import MambaSpec

    shapes: dict[str, Any] = {"shapes": ((4, 8),), "dtypes": (torch.float32,)}
    return MambaSpec(block_size=4096, **shapes, **more)


def test_a_decoder_on_one_stage_is_taken() -> None:
    refuse_unsupported(made())


@pytest.mark.parametrize(
    ("bad", "sentence"),
    [
        (made(is_encoder_decoder=True), "cross attention"),
        (made(pipeline_parallel_size=2), "engine.args.pipeline_parallel_size: is 2"),
        (made(decode_context_parallel_size=2), "decode_context_parallel_size"),
        (made(prefill_context_parallel_size=2), "prefill_context_parallel_size"),
    ],
)
def test_what_was_never_handed_over_is_refused_with_what_is_supported(
    bad: Any, sentence: str
) -> None:
    with pytest.raises(ConfigError) as refused:
        refuse_unsupported(bad)
    assert sentence in refused.value.message
    assert SUPPORTED in refused.value.message


def test_each_kind_of_layer_is_known_as_the_tokens_that_it_keeps() -> None:
    from vllm.v1.kv_cache_interface import UniformTypeKVCacheSpecs

    assert kv_group(spec("FullAttentionSpec"), 100) == KvGroup(16)
    assert kv_group(spec("FullAttentionSpec", sliding_window=64), 100) == KvGroup(16)
    assert kv_group(spec("MLAAttentionSpec"), 100) == KvGroup(16)
    window = spec("SlidingWindowSpec", sliding_window=64)
    assert kv_group(window, 100) == KvGroup(16, Kept.WINDOW, 64, 100)
    chunked = spec("ChunkedLocalAttentionSpec", attention_chunk_size=128)
    assert kv_group(chunked, 100) == KvGroup(16, Kept.CHUNK, 128, 100)
    assert kv_group(state(), 100) == KvGroup(4096, Kept.STATE)
    several = UniformTypeKVCacheSpecs(block_size=16, kv_cache_specs={"a": window, "b": window})
    assert kv_group(several, 100) == KvGroup(16, Kept.WINDOW, 64, 100)


@pytest.mark.parametrize("in_flight", [1, 40, 100, 4096])
def test_what_a_prompt_holds_while_it_is_computed_is_what_vllm_says(in_flight: int) -> None:
    kinds = [
        spec("SlidingWindowSpec", sliding_window=64),
        spec("SlidingWindowSpec", sliding_window=1),
        spec("ChunkedLocalAttentionSpec", attention_chunk_size=128),
    ]
    for kind in kinds:
        group = kv_group(kind, in_flight)
        longest = kind.max_admission_blocks_per_request(in_flight, 100_000)
        assert group.blocks_max(100_000, computes=True) == longest


def test_kinds_that_were_never_tried_are_refused() -> None:
    """Among them those derived from kinds that work, and those beside such in one group."""
    from vllm.v1.kv_cache_interface import SparseCacheRole, UniformTypeKVCacheSpecs

    untried = [
        spec("CrossAttentionSpec"),
        spec("SinkFullAttentionSpec", sink_len=4),
        spec("SlidingWindowMLASpec", sliding_window=64),
        spec("SlidingWindowSpec", sliding_window=64, extra_retained_tokens=1),
        spec("MLAAttentionSpec", cache_role=SparseCacheRole.INDEXER),
        spec("MLAAttentionSpec", tokens_per_state=4),
        spec("FullAttentionSpec", non_causal=True),
        state(num_speculative_blocks=1),
    ]
    latent = spec("MLAAttentionSpec")
    for index in untried[4:6]:
        both = {"latent": latent, "index": index}
        untried.append(UniformTypeKVCacheSpecs(block_size=16, kv_cache_specs=both))
    for kind in untried:
        with pytest.raises(ConfigError, match="supported are"):
            kv_group(kind, 100)


def test_the_layers_of_one_group_may_differ_in_size() -> None:
    from vllm.v1.kv_cache_interface import KVCacheGroupSpec, UniformTypeKVCacheSpecs

    wide, narrow = spec("FullAttentionSpec", page_size_padded=4096), spec("FullAttentionSpec")
    both = UniformTypeKVCacheSpecs(block_size=16, kv_cache_specs={"a": wide, "b": narrow})
    groups = [KVCacheGroupSpec(["a", "b"], both), KVCacheGroupSpec(["c"], narrow)]
    config: Any = SimpleNamespace(kv_cache_groups=groups)
    assert [layer_spec(config, name) for name in "abc"] == [wide, narrow, narrow]
    with pytest.raises(KeyError):
        layer_spec(config, "d")


def test_only_pages_of_k_and_v_of_one_size_may_be_compressed() -> None:
    assert holds_k_and_v(spec("FullAttentionSpec"))
    assert holds_k_and_v(spec("SlidingWindowSpec", sliding_window=64))
    assert not holds_k_and_v(spec("MLAAttentionSpec"))
    assert not holds_k_and_v(spec("FullAttentionSpec", head_size_v=4))
    assert not holds_k_and_v(state())
