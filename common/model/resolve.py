"""Finds a model's files on this machine. It never downloads.

`baton-tiny` is the embedded model, which is made on first use. A path is a Hugging Face folder.
Anything else is a Hugging Face id, which is looked up in the local cache.
"""

from __future__ import annotations

from pathlib import Path

from common.errors import ConfigError
from common.model.embedded import EMBEDDED_MODEL_NAME, ensure_embedded_model


def resolve_model(path: str) -> Path:
    """Returns the folder with config.json. Raises ConfigError, which tells what to do."""
    if path == EMBEDDED_MODEL_NAME:
        return _embedded_model()
    folder = Path(path).expanduser()
    if folder.is_dir():
        if not (folder / "config.json").is_file():
            raise ConfigError(
                "model.path", f"{folder} has no config.json: not a Hugging Face model folder"
            )
        return folder
    looks_like_id = path.count("/") == 1 and not path.startswith((".", "/", "~"))
    cached = _cached_snapshot(path) if looks_like_id else None
    if cached is not None:
        return cached
    fix = f"; fetch it first with `hf download {path}`" if looks_like_id else ""
    raise ConfigError("model.path", f"no model at {path!r}{fix}")


def _embedded_model() -> Path:
    try:
        return ensure_embedded_model()
    except (OSError, RuntimeError) as error:  # pathlib's RuntimeError: this user has no home
        raise ConfigError(
            "model.path",
            f"the embedded model cannot be written ({error}); set XDG_CACHE_HOME to a folder that "
            "this user can write, or name a model of yours",
        ) from error


def _cached_snapshot(model_id: str) -> Path | None:
    try:
        from huggingface_hub import try_to_load_from_cache
    except ImportError:
        return None
    found = try_to_load_from_cache(model_id, "config.json")
    return Path(found).parent if isinstance(found, str) else None
