"""Checks whether a model's KV can be handed over, before anything starts.

Theory of operation: a handoff moves whole blocks, whatever is in them. It must know only which
blocks of a prompt each KV cache group of the engine still keeps (`common.blocks`): all for full and
latent attention, the last ones for a window or a chunk, one for a state. vLLM's other kinds of KV
were never tried here, so they are refused; `kv_kinds.py` knows them from config.json.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from common.blocks import Kept, KvGroup
from common.engine.speculation.arguments import samples_apart
from common.errors import ConfigError

if TYPE_CHECKING:
    from vllm.config import VllmConfig
    from vllm.v1.kv_cache_interface import AttentionSpec, KVCacheConfig, KVCacheSpec

SUPPORTED = (
    "supported are decoder models with full, windowed, chunked or latent attention or with state "
    "layers, on one pipeline stage"
)


def restores(made: VllmConfig) -> bool:
    """Whether this engine can continue requests that another engine began (`ResumeSampler`).

    A GPU engine cannot: its runner keeps the counts on the device, and was never tested with the
    sampler. With speculative decoding it must keep such requests from drafts. An engine whose
    logprobs are of processed logits cannot, because a processor changes them."""
    from vllm.platforms import current_platform

    return bool(
        current_platform.is_cpu()
        and not made.use_v2_model_runner
        and (made.speculative_config is None or samples_apart(made))
        and made.model_config.logprobs_mode.startswith("raw")
    )


def refuse_unsupported(made: VllmConfig) -> None:
    """Raises ConfigError(model.path or engine.args) with what was found and what is supported."""
    model, parallel = made.model_config, made.parallel_config
    if model.is_encoder_decoder:
        raise ConfigError(
            "model.path",
            f"KV of a model with an encoder and cross attention is not handed over; {SUPPORTED}",
        )
    sizes = {
        "pipeline_parallel_size": parallel.pipeline_parallel_size,
        "decode_context_parallel_size": parallel.decode_context_parallel_size,
        "prefill_context_parallel_size": parallel.prefill_context_parallel_size,
    }
    for key, size in sizes.items():
        if size != 1:
            raise ConfigError(f"engine.args.{key}", f"is {size}, but only 1 works; {SUPPORTED}")


def kv_group(spec: KVCacheSpec, in_flight: int) -> KvGroup:
    """What the layers of a KV cache group keep. It runs in the engine and decides finally whether a
    model's KV can be handed over. `in_flight`: `VllmConfig.max_in_flight_tokens`. Raises
    ConfigError."""
    from vllm.v1 import kv_cache_interface as kinds

    if isinstance(spec, kinds.UniformTypeKVCacheSpecs):
        members = [kv_group(one, in_flight) for one in spec.kv_cache_specs.values()]
        return members[0]
    if type(spec) is kinds.MambaSpec and not spec.num_speculative_blocks:
        return KvGroup(spec.block_size, Kept.STATE)
    if isinstance(spec, kinds.AttentionSpec) and _keeps_each_token(spec):
        if type(spec) in (kinds.FullAttentionSpec, kinds.MLAAttentionSpec):
            return KvGroup(spec.block_size)
        if type(spec) is kinds.SlidingWindowSpec and not spec.extra_retained_tokens:
            return KvGroup(spec.block_size, Kept.WINDOW, spec.sliding_window, in_flight)
        if type(spec) is kinds.ChunkedLocalAttentionSpec:
            return KvGroup(spec.block_size, Kept.CHUNK, spec.attention_chunk_size, in_flight)
    raise ConfigError("model.path", f"vLLM keeps KV of this model as {spec}; {SUPPORTED}")


def _keeps_each_token(spec: AttentionSpec) -> bool:
    """Whether it is no index beside other KV (sparse attention), has no vector for several tokens,
    and does not depend on tokens that come later."""
    from vllm.v1.kv_cache_interface import SparseCacheRole

    index = getattr(spec, "cache_role", None) is SparseCacheRole.INDEXER
    return not index and spec.tokens_per_state == 1 and not getattr(spec, "non_causal", False)


def layer_spec(config: KVCacheConfig, name: str) -> KVCacheSpec:
    """What vLLM says of the KV of one layer."""
    for group in config.kv_cache_groups:
        if name in group.layer_names:
            spec = group.kv_cache_spec
            return getattr(spec, "kv_cache_specs", {}).get(name, spec)
    raise KeyError(name)


def holds_k_and_v(spec: KVCacheSpec) -> bool:
    """Whether a page holds K and V of each token, which compression must know."""
    from vllm.v1 import kv_cache_interface as kinds

    plain = (kinds.FullAttentionSpec, kinds.SlidingWindowSpec, kinds.ChunkedLocalAttentionSpec)
    return type(spec) in plain and spec.head_size_v == spec.head_size
