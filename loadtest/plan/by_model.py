"""`baton plan --models FILE`: the flags of each model, and what their fleets are together."""

from __future__ import annotations

import argparse
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from common.errors import ConfigError
from loadtest.plan.sizing import FleetShape

FLAG = "--models"
MODELS_MAX = 64
SEVERAL = ("profile", "price")
"""Keys that may be a list: one for each kind of worker."""


class Fleet(NamedTuple):
    """The fleet that was taken for one model."""

    shape: FleetShape
    #: For an hour.
    price: float


def read(argv: list[str]) -> tuple[dict[str, list[str]], list[str]]:
    """The flags of each model, by its name, and those of all. Without `--models` one model without
    a name has none of its own. Paths in the file are relative to it. Raises ConfigError."""
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    parser.add_argument(FLAG, type=Path)
    chosen, shared = parser.parse_known_args(argv)
    if chosen.models is None:
        return {"": []}, shared
    try:
        tables = tomllib.loads(chosen.models.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(FLAG, f"{chosen.models}: cannot be read: {error.strerror}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(FLAG, f"{chosen.models}: is not TOML: {error}") from error
    if not 0 < len(tables) <= MODELS_MAX:
        sentence = f"{chosen.models}: must have a table for each of 1 to {MODELS_MAX} models"
        raise ConfigError(FLAG, sentence)
    return {name: _flags(chosen.models, name, table) for name, table in tables.items()}, shared


def joined(shared: list[str], flags: list[str]) -> list[str]:
    """All flags of a model. Of those that may be repeated, its own take the place of the shared
    ones."""
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    for key in SEVERAL:
        if f"--{key}" in flags:
            parser.add_argument(f"--{key}", action="append")
    return [*parser.parse_known_args(shared)[1], *flags]


def begin(model: str, chosen: argparse.Namespace) -> None:
    """The plan of this model follows. What is written to files gets its name."""
    print(f"\nmodel {model}")
    for key in ("json", "png"):
        path = getattr(chosen, key)
        if path:
            setattr(chosen, key, path.with_stem(f"{path.stem}-{model.replace('/', '-')}"))


def together(fleets: Mapping[str, Fleet]) -> str:
    """One sentence about the fleets of all models."""
    workers = sum(fleet.shape.workers for fleet in fleets.values())
    cost = sum(fleet.price for fleet in fleets.values())
    shapes = ", ".join(f"{model} {fleet.shape.name}" for model, fleet in fleets.items())
    return f"\nTogether {workers} workers, {cost:g} an hour: {shapes}"


def _flags(path: Path, model: str, table: object) -> list[str]:
    if not isinstance(table, dict):
        raise ConfigError(FLAG, f"{path}: {model} must be a table, like [chat]")
    flags: list[str] = []
    for key, value in table.items():
        values = value if isinstance(value, list) and key in SEVERAL else [value]
        for one in values:
            if isinstance(one, (dict, list, bool)):
                raise ConfigError(FLAG, f"{path}: {model}.{key} must be a string or a number")
            of_file = key in ("profile", "trace") and not Path(str(one)).is_absolute()
            flags += [f"--{key}", str(path.parent / str(one)) if of_file else str(one)]
    return flags
