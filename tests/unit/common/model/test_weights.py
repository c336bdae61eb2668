"""What the weights promise of the model, shown by a plain numpy forward pass of Llama."""

import hashlib

import numpy as np
import pytest
from numpy.typing import NDArray

from common.model.byte_tokenizer import EOS_ID, VOCAB_SIZE
from common.model.weights import Recipe, build_weights

RECIPE = Recipe()
WEIGHTS = build_weights(RECIPE)
PROMPT = b"the quick brown fox jumps over a lazy dog while rain falls on ol"
Array = NDArray[np.float32]


def norm(x: Array) -> Array:
    scaled: Array = x / np.sqrt((x * x).mean(-1, keepdims=True) + np.float32(1e-5))
    return scaled


def rotate(x: Array) -> Array:
    """RoPE over shape (heads, tokens, head_dim)."""
    half = RECIPE.head_dim // 2
    thetas = RECIPE.rope_theta ** (-np.arange(half) / half)
    angles = np.arange(x.shape[1])[:, None] * thetas
    cos, sin = np.cos(angles).astype(np.float32), np.sin(angles).astype(np.float32)
    low, high = x[..., :half], x[..., half:]
    return np.concatenate([low * cos - high * sin, high * cos + low * sin], axis=-1)


def attend(h: Array, prefix: str) -> Array:
    def heads(name: str, count: int) -> Array:
        rows = h @ WEIGHTS[f"{prefix}.{name}.weight"].T
        return rows.reshape(len(h), count, RECIPE.head_dim).transpose(1, 0, 2)

    group = RECIPE.heads // RECIPE.kv_heads
    query = rotate(heads("q_proj", RECIPE.heads))
    key = rotate(heads("k_proj", RECIPE.kv_heads)).repeat(group, axis=0)
    value = heads("v_proj", RECIPE.kv_heads).repeat(group, axis=0)
    scores = query @ key.transpose(0, 2, 1) / np.sqrt(np.float32(RECIPE.head_dim))
    scores[:, np.triu(np.ones((len(h), len(h)), bool), 1)] = -np.inf
    shares = np.exp(scores - scores.max(-1, keepdims=True))
    mixed = (shares / shares.sum(-1, keepdims=True)) @ value
    out: Array = mixed.transpose(1, 0, 2).reshape(len(h), -1) @ WEIGHTS[f"{prefix}.o_proj.weight"].T
    return out


def logits(ids: list[int]) -> Array:
    """Of every position, shape (tokens, vocab)."""
    x = WEIGHTS["model.embed_tokens.weight"][ids]
    for index in range(RECIPE.layers):
        layer = f"model.layers.{index}"
        x = x + attend(norm(x), f"{layer}.self_attn")
        h = norm(x)
        gate = h @ WEIGHTS[f"{layer}.mlp.gate_proj.weight"].T
        up = h @ WEIGHTS[f"{layer}.mlp.up_proj.weight"].T
        x = x + (gate / (1 + np.exp(-gate)) * up) @ WEIGHTS[f"{layer}.mlp.down_proj.weight"].T
    out: Array = norm(x) @ WEIGHTS["lm_head.weight"].T
    return out


def greedy(prompt: bytes, count: int) -> list[int]:
    ids = list(prompt)
    for _ in range(count):
        ids.append(int(logits(ids)[-1].argmax()))
    return ids[len(prompt) :]


def test_changed_numbers_need_a_new_revision() -> None:
    """The cache is keyed by the recipe: other weights under the same recipe would never be seen."""
    digest = hashlib.sha256()
    for name in sorted(WEIGHTS):
        digest.update(name.encode() + WEIGHTS[name].tobytes())
    assert (RECIPE.revision, digest.hexdigest()[:16]) == (1, "57c4996e490fa87b")


def test_every_prompt_token_matters() -> None:
    """Move each token in turn: the last logits move by a good part of their own spread."""
    base = logits(list(PROMPT))[-1, 0x20:0x7F]
    moved = []
    for position, byte in enumerate(PROMPT):
        ids = list(PROMPT)
        ids[position] = ord("a") if byte != ord("a") else ord("e")
        moved.append(float((logits(ids)[-1, 0x20:0x7F] - base).std() / base.std()))
    assert min(moved) > 0.05
    assert float(np.median(moved)) > 0.3


def test_greedy_text_is_diverse_and_depends_on_the_first_token() -> None:
    text = greedy(PROMPT, 48)
    assert len(set(text)) >= 8
    assert max(text.count(token) for token in set(text)) < 16
    assert greedy(b"T" + PROMPT[1:], 48) != text


def test_only_printable_ascii_and_eos_can_be_sampled() -> None:
    printable = {*range(0x20, 0x7F), EOS_ID}
    banned = [token for token in range(VOCAB_SIZE) if token not in printable]
    rows = logits(list(PROMPT))
    assert float((rows[:, banned].max(-1) - rows.max(-1)).max()) < -15.0
    assert set(greedy(PROMPT, 48)) <= printable


@pytest.mark.parametrize("level", range(RECIPE.layers))
def test_nothing_writes_to_the_bias_channel(level: int) -> None:
    layer = f"model.layers.{level}"
    assert not WEIGHTS[f"{layer}.self_attn.o_proj.weight"][0].any()
    assert not WEIGHTS[f"{layer}.mlp.down_proj.weight"][0].any()
    assert set(WEIGHTS["model.embed_tokens.weight"][:, 0]) == {RECIPE.bias_channel}
