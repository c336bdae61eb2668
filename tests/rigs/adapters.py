"""Tiny LoRA adapters of the embedded model, in PEFT's format, made without PEFT."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
from safetensors.numpy import save_file

from common.model.weights import Recipe

SCALE = 0.05
"""So strong that an adapter's text differs from that of the model and of other adapters soon."""


def make_adapter(
    folder: Path, seed: int, *, rank: int = 8, recipe: Recipe | None = None, layers: int = 0
) -> Path:
    """Returns the folder, which is made. `layers`: how many it changes, if not those of the
    recipe."""
    recipe = recipe or Recipe()
    dice = np.random.default_rng(seed)
    width, keys = recipe.hidden, recipe.kv_heads * recipe.head_dim
    modules = {
        "self_attn.q_proj": (width, recipe.heads * recipe.head_dim),
        "self_attn.k_proj": (width, keys),
        "self_attn.v_proj": (width, keys),
        "self_attn.o_proj": (recipe.heads * recipe.head_dim, width),
        "mlp.down_proj": (recipe.intermediate, width),
    }
    tensors = {}
    for layer in range(layers or recipe.layers):
        for module, (inputs, outputs) in modules.items():
            name = f"base_model.model.model.layers.{layer}.{module}"
            a, b = dice.normal(size=(rank, inputs)), dice.normal(size=(outputs, rank))
            tensors[f"{name}.lora_A.weight"] = (a * SCALE).astype(np.float32)
            tensors[f"{name}.lora_B.weight"] = (b * SCALE).astype(np.float32)
    folder.mkdir(parents=True, exist_ok=True)
    save_file(tensors, str(folder / "adapter_model.safetensors"), metadata={"format": "pt"})
    told = {
        "peft_type": "LORA",
        "r": rank,
        "lora_alpha": 2 * rank,
        "target_modules": sorted({module.rsplit(".", 1)[-1] for module in modules}),
        "base_model_name_or_path": "baton-tiny",
        "bias": "none",
        "task_type": "CAUSAL_LM",
    }
    (folder / "adapter_config.json").write_text(json.dumps(told))
    return folder
