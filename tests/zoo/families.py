"""The families of the zoo: for each the configuration of a checkpoint small enough to be made in a
second, with windows and chunks short enough that a prompt of a block crosses them."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from common.model.byte_tokenizer import BOS_ID, EOS_ID, PAD_ID

VOCAB = 320
CONTEXT = 4096
WINDOW = 64
#: Tokens of a block of the CPU engine.
BLOCK = 128
TOKEN_IDS = {"bos_token_id": BOS_ID, "eos_token_id": EOS_ID, "pad_token_id": PAD_ID}

_SIZES: dict[str, Any] = {
    "vocab_size": VOCAB,
    "hidden_size": 128,
    "intermediate_size": 256,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "max_position_embeddings": CONTEXT,
    "tie_word_embeddings": False,
    **TOKEN_IDS,
}
_GROUPED = {**_SIZES, "num_key_value_heads": 2}
_HEADED = {**_GROUPED, "head_dim": 32}
_TIED = {**_HEADED, "tie_word_embeddings": True}
_ALTERNATING = ["sliding_attention", "full_attention"] * 2


@dataclass(frozen=True)
class Family:
    #: Names its checkpoint and its row.
    key: str
    #: As people call it.
    name: str
    #: Of its configuration, in transformers' words.
    model_type: str
    #: What its configuration says.
    config: dict[str, Any]
    #: What `[prefill.NAME.engine]` and `[decode.NAME.engine]` say beside the zoo's own.
    engine: dict[str, Any] = field(default_factory=dict)
    #: Arguments of the plain engine that Baton gives by itself.
    plain: dict[str, Any] = field(default_factory=dict)
    #: Why a text depends on its company in the plain engine; empty if it does not. Such a family is
    #: asked one prompt at a time, and for what follows the first token: so both engines compute the
    #: prompt alike, and the last token by itself. Prompts that D computes are not compared.
    alone: str = ""


def _family(
    name: str,
    model_type: str,
    sizes: dict[str, Any],
    /,
    key: str = "",
    engine: dict[str, Any] | None = None,
    plain: dict[str, Any] | None = None,
    alone: str = "",
    **more: Any,
) -> Family:
    key = key or model_type.replace("_", "-")
    return Family(key, name, model_type, {**sizes, **more}, engine or {}, plain or {}, alone)


#: vLLM's CPU engine fails on a state beside attention with its prefix cache on.
_NO_CACHE = {"enable_prefix_caching": False}
#: Without AMX vLLM computes a prompt of latent attention in one step on a CPU.
_WHOLE_PROMPTS = {"max_num_batched_tokens": CONTEXT}
#: Of 26 prompts a plain engine answered none in a batch as it does alone. Where positions are not
#: scaled, vLLM's CPU kernel of rotary positions takes the keys of latent attention, which lie
#: apart, for dense ones, and turns what is of other tokens.
_INEXACT = (
    "without YaRN, as here, vLLM's CPU engine itself answers otherwise in a batch, and for a "
    "prompt computed in other steps"
)
_LATENT: dict[str, Any] = {
    "kv_lora_rank": 512,
    "q_lora_rank": None,
    "qk_rope_head_dim": 64,
    "qk_nope_head_dim": 32,
    "v_head_dim": 32,
    "num_key_value_heads": 4,
    "moe_intermediate_size": 64,
    "n_routed_experts": 4,
    "n_shared_experts": 1,
    "num_experts_per_tok": 2,
    "first_k_dense_replace": 1,
    "n_group": 1,
    "topk_group": 1,
}
_YARN = {
    "rope_type": "yarn",
    "rope_theta": 10_000.0,
    "factor": 4.0,
    "original_max_position_embeddings": 1024,
}
_DEEPSEEK = {
    **_SIZES,
    **_LATENT,
    "rope_parameters": {
        **_YARN,
        "beta_fast": 32,
        "beta_slow": 1,
        "mscale": 1.0,
        "mscale_all_dim": 1.0,
    },
}
_MOE: dict[str, Any] = {"num_experts": 4, "num_experts_per_tok": 2}
_LLAMA3_ROPE = {
    "rope_type": "llama3",
    "rope_theta": 500_000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 1024,
}
_GPT = {"vocab_size": VOCAB, "n_embd": 128, "n_layer": 4, "n_head": 4} | TOKEN_IDS
_VISION = {"depth": 2, "embed_dim": 64, "hidden_size": 128, "num_heads": 2, "mlp_ratio": 2}

FAMILIES = (
    _family("Llama 3", "llama", _HEADED, "llama3", rope_parameters=_LLAMA3_ROPE),
    _family("Qwen2", "qwen2", _GROUPED),
    _family("Qwen3", "qwen3", _HEADED),
    _family("Qwen3 MoE", "qwen3_moe", _HEADED, moe_intermediate_size=64, **_MOE),
    _family("Mixtral", "mixtral", _HEADED, num_local_experts=4, num_experts_per_tok=2),
    _family("Mistral", "mistral", _HEADED, sliding_window=None),
    _family("Mistral, window", "mistral", _HEADED, "mistral-window", sliding_window=WINDOW),
    _family("Gemma", "gemma", _TIED),
    _family(
        "Gemma 2",
        "gemma2",
        _TIED,
        sliding_window=WINDOW,
        layer_types=_ALTERNATING,
        query_pre_attn_scalar=32,
    ),
    _family(
        "Gemma 3",
        "gemma3_text",
        {**_TIED, "num_hidden_layers": 6},
        "gemma3",
        sliding_window=WINDOW,
        layer_types=["sliding_attention"] * 5 + ["full_attention"],
        query_pre_attn_scalar=32,
    ),
    _family(
        "gpt-oss",
        "gpt_oss",
        {**_HEADED, "intermediate_size": 128, "head_dim": 64},
        sliding_window=WINDOW,
        layer_types=_ALTERNATING,
        num_local_experts=4,
        num_experts_per_tok=2,
    ),
    _family(
        "Llama 4",
        "llama4_text",
        _HEADED,
        "llama4",
        intermediate_size_mlp=256,
        num_local_experts=4,
        num_experts_per_tok=1,
        attention_chunk_size=2 * BLOCK,
        layer_types=["chunked_attention"] * 3 + ["full_attention"],
        no_rope_layers=[1, 1, 1, 0],
        interleave_moe_layer_step=2,
    ),
    _family("Phi-3", "phi3", _GROUPED, sliding_window=None),
    _family("Phi-3, window", "phi3", _GROUPED, "phi3-window", sliding_window=WINDOW),
    _family("DeepSeek-V2", "deepseek_v2", _DEEPSEEK, engine=_WHOLE_PROMPTS, topk_method="greedy"),
    _family(
        "DeepSeek-V3",
        "deepseek_v3",
        {**_DEEPSEEK, "q_lora_rank": 64, "topk_method": "noaux_tc"},
        engine=_WHOLE_PROMPTS,
    ),
    _family(
        "DeepSeek-V3, positions not scaled",
        "deepseek_v3",
        {**_SIZES, **_LATENT, "q_lora_rank": 64, "topk_method": "noaux_tc"},
        "deepseek-v3-unscaled",
        engine=_WHOLE_PROMPTS,
        alone=_INEXACT,
    ),
    _family(
        "Gemma 4",
        "gemma4_text",
        {**_TIED, "num_hidden_layers": 6},
        "gemma4",
        sliding_window=WINDOW,
        layer_types=["sliding_attention"] * 5 + ["full_attention"],
        global_head_dim=64,
        vocab_size_per_layer_input=VOCAB,
        hidden_size_per_layer_input=32,
        num_kv_shared_layers=0,
    ),
    _family("OLMo 2", "olmo2", _GROUPED),
    _family("OLMo 3", "olmo3", _GROUPED, sliding_window=WINDOW, layer_types=_ALTERNATING),
    _family("OLMoE", "olmoe", _GROUPED, **_MOE),
    _family("GLM-4", "glm4", _HEADED),
    _family(
        "GLM-4 MoE",
        "glm4_moe",
        _HEADED,
        **{k: v for k, v in _LATENT.items() if "expert" in k},
        moe_intermediate_size=64,
        first_k_dense_replace=1,
        n_group=1,
        topk_group=1,
    ),
    _family("Cohere 2", "cohere2", _TIED, sliding_window=WINDOW, layer_types=_ALTERNATING),
    _family("EXAONE 4", "exaone4", _HEADED, sliding_window=WINDOW, layer_types=_ALTERNATING),
    _family("Granite", "granite", _GROUPED),
    _family("GPT-2", "gpt2", _GPT, n_positions=CONTEXT),
    _family("GPT-NeoX", "gpt_neox", _SIZES),
    _family("Falcon", "falcon", _SIZES, new_decoder_architecture=True, num_kv_heads=2),
    _family(
        "BLOOM",
        "bloom",
        {"vocab_size": VOCAB, "hidden_size": 128, "n_layer": 4, "n_head": 4} | TOKEN_IDS,
    ),
    _family(
        "Qwen2-VL (text)",
        "qwen2_vl",
        TOKEN_IDS | {"tie_word_embeddings": False},
        text_config={
            **_GROUPED,
            "rope_parameters": {
                "rope_type": "default",
                "rope_theta": 10000.0,
                "mrope_section": [4, 6, 6],
            },
        },
        vision_config=_VISION,
    ),
    _family(
        "Mamba 2",
        "mamba2",
        _SIZES,
        num_heads=4,
        head_dim=64,
        state_size=32,
        n_groups=1,
        chunk_size=64,
        expand=2,
    ),
    _family(
        "Falcon-H1",
        "falcon_h1",
        _HEADED,
        plain=_NO_CACHE,
        mamba_n_heads=4,
        mamba_d_head=32,
        mamba_d_ssm=128,
        mamba_d_state=32,
        mamba_n_groups=1,
        mamba_chunk_size=64,
    ),
    _family(
        "Nemotron-H",
        "nemotron_h",
        _HEADED,
        plain=_NO_CACHE,
        layers_block_type=["mamba", "attention"] * 2,
        mamba_num_heads=8,
        mamba_head_dim=32,
        ssm_state_size=32,
        n_groups=1,
        chunk_size=64,
    ),
    _family(
        "Granite 4, hybrid",
        "granitemoehybrid",
        _GROUPED,
        plain=_NO_CACHE,
        layer_types=["mamba", "attention"] * 2,
        num_local_experts=4,
        num_experts_per_tok=2,
        shared_intermediate_size=256,
        mamba_n_heads=8,
        mamba_d_head=32,
        mamba_d_state=32,
        mamba_n_groups=1,
        mamba_chunk_size=64,
    ),
)
