"""EAGLE heads for the embedded model, and a model with an MTP layer, made by the recipe of its
weights.

Theory of operation: a head reads at each position the model's hidden state and the next token, and
says the token after that. `write_eagle` makes the model itself into such a head: it reads nothing
of the hidden state, and so computes what the model will compute at the next token, out of its own
KV of all positions before. It is right about most tokens, and about few without that KV. An EAGLE
head has no norm before its first layer: that one adds nothing here, and the model's layers follow
it. A head never sees the first token of a text, to which some of them attend from afar. Where the
first tokens are alike (`alike_first`), that is hardly a loss.

`write_eagle3` makes a head of one layer, which reads the hidden states and is right about few
tokens: what it drafts after a handoff shows whether they are those of one engine.

`write_mtp` makes a model of the family MiMo, which is one layer of the embedded model, and an MTP
layer that is the same. It reads nothing of the hidden state, either. MTP brings the embeddings to
one length first: here they all have it, and get back what that takes. Of a text MTP sees neither
the first token nor the second.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import save_file

from common.model.byte_tokenizer import write_tokenizer
from common.model.embedded import RECIPE, ensure_embedded_model
from common.model.weights import Array, build_weights

BEGINNING = 64
EPSILON = 1e-5
FAR = "model.layers.2."
"""The layer of the embedded model that attends to tokens from 100 to 800 positions before: a text
after a prompt depends on the prompt, and not on itself alone."""
AUX_LAYERS = (1, 2, 4)
"""Behind which layers of the model an EAGLE-3 head reads its hidden states."""


def alike_first(text: list[int]) -> list[int]:
    """As long, and its first tokens are all the same."""
    return text[:1] * len(text[:BEGINNING]) + text[BEGINNING:]


def write_eagle(folder: Path) -> Path:
    """Writes the head and returns its folder."""
    weights, hidden = build_weights(RECIPE), RECIPE.hidden
    token, state = np.eye(hidden, dtype=np.float32), np.zeros((hidden, hidden), np.float32)
    head = {"fc.weight": np.hstack([token, state])}
    for name, tensor in weights.items():
        if name.startswith("model.layers."):
            _, _, number, rest = name.split(".", 3)
            head[f"layers.{int(number) + 1}.{rest}"] = tensor
    for name in [name for name in head if name.startswith("layers.1.")]:
        if "input_layernorm" not in name:
            head[name.replace(".1.", ".0.", 1)] = np.zeros_like(head[name])
    return _written(folder, head, {"num_hidden_layers": RECIPE.layers + 1})


def write_eagle3(folder: Path) -> Path:
    """Writes the head and returns its folder."""
    weights, hidden = build_weights(RECIPE), RECIPE.hidden
    last = {
        name.removeprefix("model.layers.3."): tensor
        for name, tensor in weights.items()
        if name.startswith("model.layers.3.")
    }
    for name in ("q", "k", "v"):  # they read the next token's embedding beside the hidden state
        own = last[f"self_attn.{name}_proj.weight"]
        last[f"self_attn.{name}_proj.weight"] = np.hstack([own, own])
    last["hidden_norm.weight"] = np.ones(hidden, np.float32)
    head = {f"midlayer.{name}": tensor for name, tensor in last.items()}
    third = np.eye(hidden, dtype=np.float32) / len(AUX_LAYERS)
    head["fc.weight"] = np.hstack([third] * len(AUX_LAYERS))
    head["norm.weight"] = np.ones(hidden, np.float32)
    head["lm_head.weight"] = weights["lm_head.weight"]
    return _written(
        folder,
        head,
        {
            "num_hidden_layers": 1,
            "draft_vocab_size": len(head["lm_head.weight"]),
            "eagle_config": {"eagle_aux_hidden_state_layer_ids": AUX_LAYERS},
        },
    )


def write_mtp(folder: Path) -> Path:
    """Writes the model, which needs no other drafter, and returns its folder."""
    weights, hidden = build_weights(RECIPE), RECIPE.hidden
    layer = {
        name.removeprefix(FAR): tensor for name, tensor in weights.items() if name.startswith(FAR)
    }
    for name in ("q", "k", "v"):
        rows = len(layer[f"self_attn.{name}_proj.weight"])
        layer[f"self_attn.{name}_proj.bias"] = np.zeros(rows, np.float32)
    embedding = weights["model.embed_tokens.weight"]
    own = embedding[:, 1:]  # all but the channel of the bias, which is the same for each token
    own *= np.sqrt(own.shape[1] / (own**2).sum(1, keepdims=True))
    length = np.sqrt((embedding[0] ** 2).mean() + EPSILON)
    one, norm = np.ones(hidden, np.float32), weights["model.norm.weight"]
    state, token = np.zeros((hidden, hidden), np.float32), np.eye(hidden, dtype=np.float32)
    model = {name: weights[name] for name in ("lm_head.weight", "model.norm.weight")}
    model["model.embed_tokens.weight"] = embedding
    model |= {f"model.layers.0.{name}": tensor for name, tensor in layer.items()}
    mtp = layer | {
        "input_proj.weight": np.hstack([state, token]),
        "token_layernorm.weight": one * length,
        "hidden_layernorm.weight": one,
        "final_layernorm.weight": norm,
    }
    model |= {f"model.mtp_layers.0.{name}": tensor for name, tensor in mtp.items()}
    config = {"architectures": ["MiMoForCausalLM"], "model_type": "qwen2", "num_hidden_layers": 1}
    _written(folder, model, config | {"num_nextn_predict_layers": 1, "rms_norm_eps": EPSILON})
    write_tokenizer(folder, RECIPE.context_tokens)
    return folder


def _written(folder: Path, head: dict[str, Array], more: dict[str, Any]) -> Path:
    folder.mkdir(exist_ok=True)
    config = json.loads((ensure_embedded_model() / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | more))
    tensors = {name: np.ascontiguousarray(tensor) for name, tensor in head.items()}
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    return folder
