"""The embedded model's weights: a small Llama with random, wide, biased matrices.

Theory of operation: a Llama with the usual small initialization repeats one token for ever, so
equal outputs would prove nothing. These widths (docs/vllm-and-ucx.md, "The model for tests") make
attention sharp and the residual stream varied, so that the output is diverse and depends on prompt
tokens far back.

Llama has no output bias, so one residual channel serves as one. Every embedding holds the same
constant there and no layer writes to it; hence the head's column for that channel adds a fixed
amount to each token's logit. It restricts the output to printable ASCII with the letter frequencies
of English, and makes EOS rare.

The numbers come from SHAKE-256 of the tensor's name. Four bytes are summed to a nearly normal
integer, which is multiplied by one float32, so the weights do not depend on any library's
generator.
"""

from __future__ import annotations

import hashlib
import math
from typing import Final

import msgspec
import numpy as np
from numpy.typing import NDArray

from common.model.byte_tokenizer import EOS_ID, VOCAB_SIZE

BIAS_CHANNEL: Final = 0
_BYTES_PER_VALUE: Final = 4
_SUM_MEAN: Final = _BYTES_PER_VALUE * 255 / 2
_SUM_STD: Final = math.sqrt(_BYTES_PER_VALUE * (256**2 - 1) / 12)

# The letters of English, the most frequent first; each step down costs the same logit.
_BY_FREQUENCY: Final = " etaoinshrdlcumwfgypbvk,.jxqz'-"


class Recipe(msgspec.Struct, frozen=True):
    """Everything on which the files depend. Its hash names the cache folder."""

    revision: int = 1  # bump when code here or in byte_tokenizer changes what is written
    seed: int = 18  # of twenty tried, one whose text does not favour a single letter
    hidden: int = 256
    intermediate: int = 512
    layers: int = 4
    heads: int = 8
    kv_heads: int = 4
    head_dim: int = 32
    context_tokens: int = 8192
    rope_theta: float = 10000.0
    std_embedding: float = 1.0
    std_head: float = 0.15
    std_query_key: float = 0.2
    std_value_output: float = 0.12
    std_mlp: float = 0.07
    position_score: float = 60.0
    bias_channel: float = 8.0
    bias_banned: float = -30.0
    bias_eos: float = -3.5  # about one token in 2,000
    bias_other_printable: float = -6.0
    bias_frequency_step: float = -0.15


Array = NDArray[np.float32]


def _normal(recipe: Recipe, name: str, shape: tuple[int, int], std: float) -> Array:
    count = shape[0] * shape[1]
    stream = hashlib.shake_256(f"{recipe.seed}/{name}".encode()).digest(count * _BYTES_PER_VALUE)
    sums = np.frombuffer(stream, np.uint8).reshape(count, _BYTES_PER_VALUE).sum(1, dtype=np.int32)
    values: Array = (sums - np.int32(_SUM_MEAN)).astype(np.float32) * np.float32(std / _SUM_STD)
    return values.reshape(shape)


def _token_bias(recipe: Recipe) -> Array:
    """What is added to each token's logit per unit of the bias channel, shape (vocab,)."""
    bias = np.full(VOCAB_SIZE, recipe.bias_banned, np.float32)
    bias[0x20:0x7F] = recipe.bias_other_printable
    for rank, character in enumerate(_BY_FREQUENCY):
        bias[ord(character)] = recipe.bias_frequency_step * rank
    bias[EOS_ID] = recipe.bias_eos
    return bias


def _aim(recipe: Recipe, level: int) -> tuple[Array, Array]:
    """Columns for the bias channel of q_proj and k_proj, shape (rows,): the distance at which each
    head attends.

    After RoPE the constant parts of query and key score `cos(theta * (distance - wanted))` summed
    over frequencies. Head h of layer l wants distance `(h + 1) * 10**l`, and only frequencies of
    10**-l and below take part, so the window is about 10**l wide and content chooses within it.
    """
    half = recipe.head_dim // 2
    thetas = [recipe.rope_theta ** (-i / half) for i in range(half)]
    used = [i for i, theta in enumerate(thetas) if theta <= 1.001 * 10.0**-level]
    size = math.sqrt(recipe.position_score * math.sqrt(recipe.head_dim) / len(used))
    size /= recipe.bias_channel
    query = np.zeros((recipe.heads, recipe.head_dim), np.float32)
    key = np.zeros((recipe.kv_heads, recipe.head_dim), np.float32)
    for i in used:
        key[:, i] = size
        for head in range(recipe.heads):
            angle = (head + 1) * 10**level * thetas[i]
            query[head, i] = size * math.cos(angle)
            query[head, i + half] = -size * math.sin(angle)
    return query.reshape(-1), key.reshape(-1)


def _layer(recipe: Recipe, level: int, prefix: str) -> dict[str, Array]:
    hidden, inner = recipe.hidden, recipe.intermediate
    query, key = recipe.heads * recipe.head_dim, recipe.kv_heads * recipe.head_dim
    shapes = {
        "self_attn.q_proj": ((query, hidden), recipe.std_query_key),
        "self_attn.k_proj": ((key, hidden), recipe.std_query_key),
        "self_attn.v_proj": ((key, hidden), recipe.std_value_output),
        "self_attn.o_proj": ((hidden, query), recipe.std_value_output),
        "mlp.gate_proj": ((inner, hidden), recipe.std_mlp),
        "mlp.up_proj": ((inner, hidden), recipe.std_mlp),
        "mlp.down_proj": ((hidden, inner), recipe.std_mlp),
    }
    tensors = {
        f"{prefix}.{name}.weight": _normal(recipe, f"{prefix}.{name}", shape, std)
        for name, (shape, std) in shapes.items()
    }
    for reader in ("self_attn.v_proj", "mlp.gate_proj", "mlp.up_proj"):
        tensors[f"{prefix}.{reader}.weight"][:, BIAS_CHANNEL] = 0.0
    for writer in ("self_attn.o_proj", "mlp.down_proj"):
        tensors[f"{prefix}.{writer}.weight"][BIAS_CHANNEL, :] = 0.0
    query_aim, key_aim = _aim(recipe, level)
    tensors[f"{prefix}.self_attn.q_proj.weight"][:, BIAS_CHANNEL] = query_aim
    tensors[f"{prefix}.self_attn.k_proj.weight"][:, BIAS_CHANNEL] = key_aim
    for norm in ("input_layernorm", "post_attention_layernorm"):
        tensors[f"{prefix}.{norm}.weight"] = np.ones(hidden, np.float32)
    return tensors


def build_weights(recipe: Recipe) -> dict[str, Array]:
    """All tensors by their Hugging Face Llama names."""
    shape = (VOCAB_SIZE, recipe.hidden)
    embedding = _normal(recipe, "embed_tokens", shape, recipe.std_embedding)
    embedding[:, BIAS_CHANNEL] = recipe.bias_channel
    head = _normal(recipe, "lm_head", shape, recipe.std_head)
    head[:, BIAS_CHANNEL] = _token_bias(recipe)
    tensors = {"model.embed_tokens.weight": embedding, "lm_head.weight": head}
    for index in range(recipe.layers):
        tensors |= _layer(recipe, index, f"model.layers.{index}")
    tensors["model.norm.weight"] = np.ones(recipe.hidden, np.float32)
    return tensors
