"""The embedded model, with which the first command needs no download.

numpy alone (no torch, no vLLM) writes it in Hugging Face format in under a second, from the fixed
recipe in `common.model.weights`. It is cached in a folder named by the recipe's hash. A folder
appears by one rename of a finished one: processes that start together may each write one, the first
rename wins, and no process sees a partial model.
"""

from __future__ import annotations

import hashlib
import os
import tempfile
from pathlib import Path
from typing import Any, Final

import msgspec
from safetensors.numpy import save

from common.model.byte_tokenizer import BOS_ID, EOS_ID, PAD_ID, VOCAB_SIZE, write_tokenizer
from common.model.weights import Recipe, build_weights

EMBEDDED_MODEL_NAME: Final = "baton-tiny"
RECIPE: Final = Recipe()


def ensure_embedded_model(cache_dir: Path | None = None, recipe: Recipe = RECIPE) -> Path:
    """Returns the model's folder, which is made first if this cache has none.

    `cache_dir` defaults to `${XDG_CACHE_HOME:-~/.cache}/baton`. Raises OSError when it cannot be
    written.
    """
    models = (cache_dir or _default_cache()) / "models"
    target = models / f"{EMBEDDED_MODEL_NAME}-{_recipe_hash(recipe)}"
    if target.is_dir():
        return target
    models.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=models, prefix=".making-") as scratch:
        made = Path(scratch) / target.name
        made.mkdir()
        _write_model(made, recipe)
        try:
            made.rename(target)
        except OSError:  # a directory with files is never replaced: another process was first
            if not target.is_dir():
                raise
    return target


def _default_cache() -> Path:
    root = os.environ.get("XDG_CACHE_HOME")
    return (Path(root) if root else Path.home() / ".cache") / "baton"


def _recipe_hash(recipe: Recipe) -> str:
    return hashlib.sha256(msgspec.json.encode(recipe)).hexdigest()[:12]


def _write_model(folder: Path, recipe: Recipe) -> None:
    token_ids = {"bos_token_id": BOS_ID, "eos_token_id": EOS_ID, "pad_token_id": PAD_ID}
    _write_json(folder / "config.json", {**_llama_config(recipe), **token_ids})
    _write_json(folder / "generation_config.json", token_ids)
    write_tokenizer(folder, recipe.context_tokens)
    weights = save(build_weights(recipe), metadata={"format": "pt"})
    (folder / "model.safetensors").write_bytes(weights)
    for path in folder.iterdir():
        with path.open("rb") as written:
            os.fsync(written.fileno())  # a power cut must not leave the name with empty files


def _llama_config(recipe: Recipe) -> dict[str, Any]:
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "dtype": "float32",
        "vocab_size": VOCAB_SIZE,
        "hidden_size": recipe.hidden,
        "intermediate_size": recipe.intermediate,
        "num_hidden_layers": recipe.layers,
        "num_attention_heads": recipe.heads,
        "num_key_value_heads": recipe.kv_heads,
        "head_dim": recipe.head_dim,
        "hidden_act": "silu",
        "max_position_embeddings": recipe.context_tokens,
        "rms_norm_eps": 1e-05,
        "rope_theta": recipe.rope_theta,
        "rope_parameters": {"rope_type": "default", "rope_theta": recipe.rope_theta},
        "attention_bias": False,
        "mlp_bias": False,
        "tie_word_embeddings": False,
    }


def _write_json(path: Path, value: dict[str, Any]) -> None:
    path.write_bytes(msgspec.json.format(msgspec.json.encode(value), indent=2) + b"\n")
