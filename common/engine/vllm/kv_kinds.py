"""What some models keep for their layers that is not handed over, told from config.json alone.

`supported_models.kv_group` decides finally, but it sees a model's KV only inside the engine, 20 s
after the start. This table says the same of the architectures of vLLM's registry; a test walks
vLLM's source, so that a new version cannot bring another kind unnoticed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

WAY_OUT = (
    "which is not handed over; name a model with full, windowed, chunked or latent attention or "
    "with state layers, or serve this one with `vllm serve`"
)


def _says(key: str) -> Callable[[Mapping[str, Any]], bool]:
    return lambda config: bool(config.get(key))


def _reads_both_ways(config: Mapping[str, Any]) -> bool:
    return config.get("is_causal") is False


@dataclass(frozen=True)
class Kind:
    #: As people call it.
    name: str
    #: vLLM's classes of layers that keep it.
    layers: frozenset[str]
    #: Those that always have such layers.
    architectures: frozenset[str] = field(default_factory=frozenset)
    #: Whether a model of another architecture has them, by its configuration; None if none has.
    asked_for: Callable[[Mapping[str, Any]], bool] | None = None


KINDS = (
    Kind(
        "cross attention to what an encoder made",
        frozenset({"CrossAttention"}),
        frozenset(
            {
                "CohereAsrForConditionalGeneration",
                "NemotronParseForConditionalGeneration",
                "WhisperForConditionalGeneration",
            }
        ),
    ),
    Kind(
        "attention sinks of its own (`param_sink_number`)",
        frozenset({"StaticSinkAttention"}),
        asked_for=_says("param_sink_number"),
    ),
    Kind(
        "a window over its answer alone (R-SWA)",
        frozenset({"RSWAAttention"}),
        frozenset({"UnlimitedOCRForCausalLM"}),
        _says("rswa_window"),
    ),
    Kind(
        "sparse attention with an indexer",
        frozenset(
            {
                "CompressorStateCache",
                "DeepseekV32IndexerCache",
                "DeepseekV4Attention",
                "DeepseekV4IndexerCache",
                "DeepseekV4SWACache",
                "Dots3NoteSlidingAttention",
                "Glm5NextIndexerCache",
                "Glm5NextTailCache",
                "MiniMaxM3IndexerCache",
                "QSACompressedKeyCache",
                "QSAKeyStateCache",
            }
        ),
        frozenset(
            {
                "DeepseekV32ForCausalLM",
                "DeepseekV4ForCausalLM",
                "DeepseekV4ForConditionalGeneration",
                "DeepseekV41ForCausalLM",
                "Dots3NoteForCausalLM",
                "Glm5NextForCausalLM",
                "Glm5NextForConditionalGeneration",
                "GlmMoeDsaForCausalLM",
                "HYV4ForCausalLM",
                "MiniMaxM3SparseForCausalLM",
                "MiniMaxM3SparseForConditionalGeneration",
                "Qwen4ExpForCausalLM",
                "Qwen4ExpForConditionalGeneration",
            }
        ),
        _says("index_topk"),
    ),
    Kind(
        "attention in both directions",
        frozenset({"EncoderOnlyAttention", "PrefillPrefixLMAttention"}),
        frozenset({"HrmTextForCausalLM"}),
        _reads_both_ways,
    ),
    Kind(
        "an audio encoder with KV of its own",
        frozenset({"WhisperCausalAttentionWithBlockPooling"}),
        frozenset({"VoxtralRealtimeGeneration"}),
    ),
)


def why_kv_stays(config: Mapping[str, Any]) -> str:
    """`config`: the model's config.json with `hf_overrides`. A sentence; empty if its KV is handed
    over, as far as can be told from there."""
    text = config.get("text_config")
    levels = [config, text] if isinstance(text, Mapping) else [config]
    names = {name for level in levels for name in level.get("architectures") or ()}
    for kind in KINDS:
        asked = kind.asked_for is not None and any(map(kind.asked_for, levels))
        if asked or names & kind.architectures:
            return f"it has {kind.name}, {WAY_OUT}"
    return ""
