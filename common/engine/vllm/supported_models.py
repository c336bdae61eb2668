"""Checks whether a model's KV can be handed over, before anything starts.

Theory of operation: a handoff moves whole pages of K and V by block number. That is correct if
every layer keeps every token in pages of one shape. Sliding windows drop blocks, state models have
none, and latent attention and cross-layer sharing lay pages out differently; none of these was
tested here, so they are refused.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from common.errors import ConfigError

if TYPE_CHECKING:
    from vllm.config import VllmConfig

SUPPORTED = (
    "supported are decoder models whose layers all use full attention with separate K and V, "
    "on one pipeline stage"
)


def restores(made: VllmConfig) -> bool:
    """Whether this engine can continue requests that another engine began (`ResumeSampler`).

    A GPU engine cannot: its runner keeps the counts on the device, and was never tested with the
    sampler. An engine with speculative decoding cannot, because it takes no logits processors. An
    engine whose logprobs are of processed logits cannot, because a processor changes them."""
    from vllm.platforms import current_platform

    return bool(
        current_platform.is_cpu()
        and not made.use_v2_model_runner
        and made.speculative_config is None
        and made.model_config.logprobs_mode.startswith("raw")
    )


def refuse_unsupported(made: VllmConfig) -> None:
    """Raises ConfigError(model.path or engine.args) with what was found and what is supported."""
    model, parallel = made.model_config, made.parallel_config
    found = {
        "latent attention (MLA)": model.use_mla,
        "state layers beside attention (a hybrid model)": model.is_hybrid,
        "no attention at all": model.is_attention_free,
        "an encoder and cross attention": model.is_encoder_decoder,
        "sliding-window attention": _window(model),
    }
    for what, there in found.items():
        if there:
            raise ConfigError(
                "model.path", f"KV of a model with {what} is not handed over; {SUPPORTED}"
            )
    sizes = {
        "pipeline_parallel_size": parallel.pipeline_parallel_size,
        "decode_context_parallel_size": parallel.decode_context_parallel_size,
        "prefill_context_parallel_size": parallel.prefill_context_parallel_size,
    }
    for key, size in sizes.items():
        if size != 1:
            raise ConfigError(f"engine.args.{key}", f"is {size}, but only 1 works; {SUPPORTED}")


def refuse_groups(groups: list[Any]) -> None:
    """Checks the KV cache groups that vLLM made of the model's layers; it runs in the engine and
    decides finally. Raises ConfigError."""
    from vllm.v1.kv_cache_interface import FullAttentionSpec

    kinds = [type(group.kv_cache_spec).__name__ for group in groups]
    plain = len(groups) == 1 and type(groups[0].kv_cache_spec) is FullAttentionSpec
    if plain and not groups[0].kv_cache_spec.sliding_window:
        return
    raise ConfigError(
        "model.path", f"vLLM keeps its KV in {len(kinds)} groups ({', '.join(kinds)}); {SUPPORTED}"
    )


def _window(model: Any) -> bool:
    """True also where only some layers have a window, as a configuration's `layer_types` says."""
    if model.disable_sliding_window:
        return False
    kinds = getattr(model.hf_text_config, "layer_types", None) or []
    windowed = any("sliding" in kind or "chunked" in kind for kind in kinds)
    return windowed or (not kinds and bool(model.get_sliding_window()))
