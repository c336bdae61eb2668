"""Finds a model's files on this machine. It never downloads.

`baton-tiny` is the embedded model, which is made on first use. A path is a Hugging Face folder.
Anything else is a Hugging Face id, which is looked up in the local cache.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from common.errors import ConfigError
from common.model.checkpoint import gguf_only
from common.model.embedded import EMBEDDED_MODEL_NAME, ensure_embedded_model

if TYPE_CHECKING:
    from common.config import Config


def model_folder(config: Config) -> Path:
    """The folder of the fleet's model, in the revision that its engines get. Raises ConfigError."""
    return resolve_model(config.model.path, str(config.model_args.get("revision", "")))


def tokenizer_folder(config: Config) -> Path:
    """The folder of its tokenizer, which need not be a model's. Raises ConfigError."""
    named = str(config.model_args.get("tokenizer", ""))
    if not named:
        return model_folder(config)
    folder = Path(named).expanduser()
    if folder.is_dir():
        return folder
    cached = _cached_snapshot(named, "", "tokenizer.json") if named.count("/") == 1 else None
    if cached is None:
        sentence = f"no tokenizer at {named!r}; name a folder with its tokenizer.json"
        raise ConfigError("engine.args.tokenizer", sentence)
    return cached


def resolve_model(path: str, revision: str = "") -> Path:
    """Returns the folder with config.json. `revision` is of a cached id; empty is its main one.
    Raises ConfigError, which tells what to do."""
    if revision and (path == EMBEDDED_MODEL_NAME or Path(path).expanduser().exists()):
        sentence = f"{path} is no Hugging Face id, which alone has revisions; leave it out"
        raise ConfigError("engine.args.revision", sentence)
    if path == EMBEDDED_MODEL_NAME:
        return _embedded_model()
    folder = Path(path).expanduser()
    if folder.is_dir():
        if (folder / "config.json").is_file():
            return folder
        if any(folder.glob("*.gguf")):
            raise ConfigError("model.path", gguf_only(folder))
        sentence = f"{folder} has no config.json: not a Hugging Face model folder"
        raise ConfigError("model.path", f"{sentence}; name the folder that has one")
    if folder.is_file():
        gguf = gguf_only(folder) if folder.suffix == ".gguf" else ""
        raise ConfigError("model.path", gguf or f"{folder} is a file; name the model's folder")
    looks_like_id = path.count("/") == 1 and not path.startswith((".", "/", "~"))
    cached = _cached_snapshot(path, revision) if looks_like_id else None
    if cached is not None:
        return cached
    wanted = f"{path} --revision {revision}" if revision else path
    fetch = f"fetch it first with `hf download {wanted}`"
    fix = fetch if looks_like_id else "name a model's folder"
    raise ConfigError("model.path", f"no model at {path!r}; {fix}")


def _embedded_model() -> Path:
    try:
        return ensure_embedded_model()
    except (OSError, RuntimeError) as error:  # pathlib's RuntimeError: this user has no home
        raise ConfigError(
            "model.path",
            f"the embedded model cannot be written ({error}); set XDG_CACHE_HOME to a folder that "
            "this user can write, or name a model of yours",
        ) from error


def _cached_snapshot(model_id: str, revision: str, file: str = "config.json") -> Path | None:
    try:
        from huggingface_hub import try_to_load_from_cache
    except ImportError:
        return None
    found = try_to_load_from_cache(model_id, file, revision=revision or None)
    return Path(found).parent if isinstance(found, str) else None
