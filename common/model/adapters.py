"""The files of a LoRA adapter: whether a base model can be served with them, and what names them.

An adapter is a folder in PEFT's format: `adapter_config.json` and `adapter_model.safetensors`. Its
id is `NAME@DIGEST`, with the SHA-256 of both files. Engines, stores and the router know an adapter
by its id alone, so that KV which was computed with other weights is never found under an equal
name. What only an engine can tell shows when it loads the adapter.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import msgspec
from safetensors import SafetensorError, safe_open

from common.errors import ConfigError

CONFIG = "adapter_config.json"
WEIGHTS = "adapter_model.safetensors"
NAME_CHARS_MAX = 64
DIGEST_CHARS = 32
SEPARATOR = "@"
#: Ranks for which vLLM has kernels; `max_lora_rank` is one of them.
RANKS = (1, 8, 16, 32, 64, 128, 256, 320, 512)
RANK_MAX_DEFAULT = 16
READ_BYTES = 1 << 20
#: A tensor of an adapter: the module that it changes, and which of the two matrices it is.
TENSOR = re.compile(r"(?:base_model\.model\.)?(?P<module>.+)\.lora_(?P<matrix>[AB])\.weight")
LAYERS = re.compile(r"\blayers\..+")


def adapter_id(name: str, digest: str) -> str:
    return f"{name}{SEPARATOR}{digest}"


def name_of_adapter(adapter: str) -> str:
    """The name in an adapter's id."""
    return adapter.rpartition(SEPARATOR)[0]


def why_no_name(name: str) -> str:
    """What is wrong with the name of an adapter; empty if nothing is."""
    if 0 < len(name) <= NAME_CHARS_MAX and name.isprintable() and SEPARATOR not in name:
        return ""
    return f"an adapter's name is 1 to {NAME_CHARS_MAX} printable characters without an {SEPARATOR}"


def checked_adapter(name: str, path: str, base: Path, rank_max: int) -> str:
    """The id of the adapter in this folder, whose files are whole and fit the model in the folder
    `base`. Reads both files once. Raises ConfigError with one sentence."""
    key, folder = f"adapters.{name}.path", Path(path).expanduser()
    if not path or not folder.is_dir():
        raise ConfigError(key, f"there is no folder {path!r}; name the adapter's folder")
    told, shapes = _read_config(key, folder), _read_shapes(key, folder)
    _check_rank(key, told, rank_max)
    _check_base(key, told, shapes, base)
    return adapter_id(name, digest_of(path))


def digest_of(path: str) -> str:
    """Of both files in this folder as they are now, in hex. Raises OSError."""
    folder, digest = Path(path).expanduser(), hashlib.sha256()
    for file in (CONFIG, WEIGHTS):
        with (folder / file).open("rb") as stream:
            digest.update((folder / file).stat().st_size.to_bytes(8, "little"))
            while some := stream.read(READ_BYTES):
                digest.update(some)
    return digest.hexdigest()[:DIGEST_CHARS]


def _read_config(key: str, folder: Path) -> dict[str, Any]:
    try:
        told = msgspec.json.decode((folder / CONFIG).read_bytes())
    except FileNotFoundError as error:
        sentence = f"{folder} has no {CONFIG}; name a folder that PEFT has written"
        raise ConfigError(key, sentence) from error
    except (OSError, msgspec.DecodeError, UnicodeDecodeError) as error:
        raise ConfigError(key, f"{folder / CONFIG} is damaged: {error}; copy it again") from error
    if not isinstance(told, dict) or told.get("peft_type", "LORA") != "LORA":
        raise ConfigError(key, f"{folder / CONFIG} is of no LoRA adapter; others are not served")
    if not isinstance(told.get("r"), int) or "lora_alpha" not in told:
        raise ConfigError(key, f"{folder / CONFIG} says no rank (r) or no lora_alpha")
    return told


def _read_shapes(key: str, folder: Path) -> dict[str, list[int]]:
    """Of each tensor. Only the header is read."""
    try:
        return dict(_shapes(folder / WEIGHTS))
    except FileNotFoundError as error:
        sentence = f"{folder} has no {WEIGHTS}; save the adapter as safetensors"
        raise ConfigError(key, sentence) from error
    except (SafetensorError, OSError) as error:
        reason = str(error).removeprefix("Error while deserializing header: ")
        raise ConfigError(key, f"{folder / WEIGHTS} is damaged: {reason}; copy it again") from error


def _shapes(file: Path) -> Iterator[tuple[str, list[int]]]:
    with safe_open(str(file), framework="np") as tensors:
        for name in tensors.keys():  # noqa: SIM118 - this is no dict
            yield name, list(tensors.get_slice(name).get_shape())


def _check_rank(key: str, told: Mapping[str, Any], rank_max: int) -> None:
    pattern = told.get("rank_pattern") or {}
    rank = max([told["r"], *(rank for rank in pattern.values() if isinstance(rank, int))])
    if rank <= rank_max:
        return
    fits = next((one for one in RANKS if one >= rank), None)
    fix = f"set [engine.args] max_lora_rank = {fits}" if fits else f"vLLM takes {RANKS[-1]} at most"
    raise ConfigError(key, f"its rank is {rank}, and the engines take {rank_max} at most; {fix}")


def _check_base(
    key: str, told: Mapping[str, Any], shapes: Mapping[str, list[int]], base: Path
) -> None:
    """A model whose weights are no safetensors is left to the engine."""
    of_base = _base_shapes(base)
    known = told.get("base_model_name_or_path") or "a model that it does not name"
    for name, shape in shapes.items():
        match = TENSOR.fullmatch(name)
        layer = LAYERS.search(match["module"]) if match is not None else None
        if match is None or layer is None or not of_base or len(shape) != 2:
            continue
        wide = of_base.get(layer[0])
        if wide is None:
            fault = f"it changes {layer[0]}, which the model does not have"
        elif len(wide) == 2 and shape[match["matrix"] == "A"] != wide[match["matrix"] == "A"]:
            fault = f"its {name} is {shape[0]} x {shape[1]}, the model's is {wide[0]} x {wide[1]}"
        else:
            continue
        sentence = f"it is of another base ({known}): {fault}; name its own as `base`"
        raise ConfigError(key, sentence)


def _base_shapes(base: Path) -> dict[str, list[int]]:
    """Of each module in the layers of the model, by its name from `layers.` on."""
    found: dict[str, list[int]] = {}
    for file in sorted(base.glob("*.safetensors")):
        try:
            for name, shape in _shapes(file):
                layer = LAYERS.search(name.removesuffix(".weight"))
                if layer is not None and name.endswith(".weight"):
                    found[layer[0]] = shape
        except (SafetensorError, OSError):
            return {}
    return found
