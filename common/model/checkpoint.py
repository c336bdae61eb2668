"""Whether the files of a model's folder are whole, told from their names, sizes and headers.

Nothing of the weights themselves is read, so that a large model takes a fraction of a second too.
What is chosen among several formats is what vLLM's loader chooses.
"""

from __future__ import annotations

import re
import zipfile
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

import msgspec
from safetensors import SafetensorError, safe_open

from common.errors import ConfigError

#: Load formats of vLLM that read *.safetensors, *.bin or *.pt of the folder.
FILE_FORMATS = frozenset({"auto", "hf", "safetensors", "fastsafetensors", "mistral", "pt"})
INDEX = "model.safetensors.index.json"
MISTRAL_INDEX = "consolidated.safetensors.index.json"
NOT_WEIGHTS = frozenset(
    {"training_args.bin", "optimizer.bin", "optimizer.pt", "scheduler.pt", "scaler.pt"}
)
OPTIONAL_JSON = ("generation_config.json", "tokenizer_config.json", "special_tokens_map.json")
LFS = b"version https://git-lfs"
PICKLE = b"\x80"
SHARD = re.compile(r"^(.*)-(\d{5})-of-(\d{5})\.(safetensors|bin)$")
AGAIN = "fetch the model again"
TO_TOKENIZER = (
    "the gateway reads it; write it with transformers: "
    "AutoTokenizer.from_pretrained(DIR).save_pretrained(DIR)"
)


def read_json(path: Path) -> dict[str, Any]:
    """Raises ConfigError(model.path) for a file that is not there, or is no JSON object."""
    try:
        value = msgspec.json.decode(path.read_bytes())
    except FileNotFoundError as error:
        raise ConfigError("model.path", f"{path.parent} has no {path.name}; {AGAIN}") from error
    except (OSError, msgspec.DecodeError, UnicodeDecodeError) as error:
        raise _damaged(path, f"it is no JSON: {error}") from error
    if not isinstance(value, dict):
        raise _damaged(path, "it is no JSON object")
    return value


def read_model_config(folder: Path, overrides: Mapping[str, Any] | None) -> dict[str, Any]:
    """Its config.json with `hf_overrides`, which reach into configurations inside it as vLLM's do.
    Raises ConfigError."""
    config = read_json(folder / "config.json")
    for key, value in (overrides or {}).items():
        inner = config.get(key)
        is_inside = key.endswith("_config") and isinstance(value, Mapping)
        config[key] = {**inner, **value} if is_inside and isinstance(inner, dict) else value
    return config


def check_tokenizer(folder: Path) -> None:
    """Raises ConfigError for what the gateway could not read there."""
    if not (folder / "tokenizer.json").exists():
        raise ConfigError("model.path", f"{folder} has no tokenizer.json; {TO_TOKENIZER}")
    for name in ("tokenizer.json", *OPTIONAL_JSON):
        if (folder / name).exists():
            read_json(folder / name)


def check_weights(folder: Path, load_format: str) -> None:
    """Raises ConfigError for weights that are missing or damaged. Formats that are not files of
    this folder (`dummy`, streamers) are not looked at."""
    if load_format not in FILE_FORMATS:
        return
    files = _chosen(folder, load_format)
    if not files:
        raise ConfigError("model.path", _no_weights(folder, load_format))
    if files[0].suffix != ".safetensors":
        _check_shards({file.name for file in files}, folder)
        for file in files:
            _check_torch_file(file)
        return
    index = folder / (MISTRAL_INDEX if files[0].name.startswith("consolidated") else INDEX)
    if not index.exists():
        _check_shards({file.name for file in files}, folder)
        for file in files:
            _tensors(file)
        return
    _check_index(index)


def _chosen(folder: Path, load_format: str) -> list[Path]:
    """The files of the first pattern that matches any, as vLLM looks for them."""
    mistral, torch_files = "consolidated*.safetensors", ["*.bin", "*.pt"]
    patterns = {
        "auto": [mistral, "*.safetensors", *torch_files],
        "hf": ["*.safetensors", *torch_files],
        "mistral": [mistral],
        "pt": ["*.pt"],
    }.get(load_format, ["*.safetensors"])
    for pattern in patterns:
        found = sorted(file for file in folder.glob(pattern) if file.name not in NOT_WEIGHTS)
        if found:
            return found
    return []


def _no_weights(folder: Path, load_format: str) -> str:
    if any(folder.glob("*.gguf")):
        return gguf_only(folder)
    if load_format not in ("auto", "hf"):
        return f"{folder} has no weights for load_format = {load_format!r}; leave it out"
    return f"{folder} has no weights (*.safetensors or *.bin); {AGAIN}"


def gguf_only(folder: Path) -> str:
    """The sentence about a folder, or a file, with GGUF weights alone."""
    return (
        f"{folder} has weights as GGUF only, which vLLM does not load; fetch the model as "
        "safetensors, or convert it with transformers (from_pretrained(..., gguf_file=...))"
    )


def _check_index(index: Path) -> None:
    weight_map = read_json(index).get("weight_map")
    if not isinstance(weight_map, dict) or not weight_map:
        raise _damaged(index, "it has no `weight_map`")
    wanted: dict[str, list[str]] = {}
    for tensor, file in weight_map.items():
        wanted.setdefault(str(file), []).append(tensor)
    for name, tensors in sorted(wanted.items()):
        file = index.parent / name
        if not file.exists():
            others = sum(not (index.parent / other).exists() for other in wanted)
            sentence = f"{index.name} names {name}, which is not there"
            counted = f"{sentence} (missing: {others} of {len(wanted)} files)"
            raise ConfigError("model.path", f"{index.parent}: {counted}; {AGAIN}")
        missing = set(tensors).difference(_tensors(file))
        if missing:
            sentence = f"it has no tensor {min(missing)}, which {index.name} names"
            raise _damaged(file, sentence)


def _check_shards(names: Collection[str], folder: Path) -> None:
    """Without an index, the numbers in the names tell how many files there must be."""
    for name in sorted(names):
        match = SHARD.match(name)
        if match is None:
            continue
        stem, _, count, suffix = match.groups()
        for number in range(1, int(count) + 1):
            shard = f"{stem}-{number:05}-of-{count}.{suffix}"
            if shard not in names:
                raise ConfigError("model.path", f"{folder} has no {shard}; {AGAIN}")


def _tensors(file: Path) -> list[str]:
    """The names of its tensors, whose bytes are all there."""
    try:
        with safe_open(str(file), framework="np") as tensors:
            return list(tensors.keys())
    except (SafetensorError, OSError) as error:
        with file.open("rb") as stream:
            head = stream.read(len(LFS))
        if head == LFS:
            sentence = "it is a pointer of Git LFS, and no weights; run `git lfs pull` there"
            raise ConfigError("model.path", f"{file}: {sentence}") from error
        reason = str(error).removeprefix("Error while deserializing header: ")
        raise _damaged(file, reason) from error


def _check_torch_file(file: Path) -> None:
    """torch writes ZIP archives, whose directory is at the end; before 1.6 it wrote pickles."""
    with file.open("rb") as stream:
        is_old = stream.read(1) == PICKLE
    if not is_old and not zipfile.is_zipfile(file):
        raise _damaged(file, "it is no file of torch, or its end is missing")


def _damaged(path: Path, reason: str) -> ConfigError:
    return ConfigError("model.path", f"{path} is damaged ({reason}); {AGAIN}")
