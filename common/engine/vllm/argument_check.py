"""Checks `[engine.args]` of a fleet file against the tables, without importing vLLM."""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from common.engine.vllm.argument_table import (
    KINDS,
    OWN_KEYS,
    REFUSED,
    UNTESTED,
    WORKS,
    Works,
)
from common.errors import ConfigError

if TYPE_CHECKING:
    from common.config.sections import Config

TABLE = "the engine arguments in docs/configuration.md"


def check_arguments(config: Config) -> None:
    """Raises ConfigError for an argument that cannot work, with what to do instead."""
    for path, arguments in _places(config):
        for name, value in arguments.items():
            fault = fault_of(name, value)
            if fault:
                raise ConfigError(f"{path}.{name}", fault)


def untested(config: Config) -> list[str]:
    """A sentence for each argument that was never tried with a handoff."""
    names = {name for _, arguments in _places(config) for name in arguments if name in UNTESTED}
    return [
        f"engine.args.{name}: vLLM gets it, but it was never tried with a handoff; compare answers "
        "with and without it"
        for name in sorted(names)
    ]


def fault_of(name: str, value: object) -> str:
    """What is wrong with an argument; empty if vLLM may get it."""
    if name in OWN_KEYS:
        own = OWN_KEYS[name]
        return f"is set by Baton; use {own}" if own else "is set by Baton; leave it out"
    if name in REFUSED:
        reason, harmless = REFUSED[name]
        taken = any(value == one and type(value) is type(one) for one in harmless)
        return "" if taken else f"cannot be {_toml(value)}: {reason}"
    if name in WORKS:
        return _wrong_value(WORKS[name], value)
    if name in UNTESTED:
        return _wrong_kind(UNTESTED[name], value)
    near = difflib.get_close_matches(name, [*WORKS, *UNTESTED, *OWN_KEYS, *REFUSED], 1)
    meant = f"did you mean {near[0]}? " if near else ""
    return f"vLLM has no such engine argument; {meant}see {TABLE}"


def _wrong_value(works: Works, value: Any) -> str:
    fault = _wrong_kind(works.kind, value)
    if fault:
        return fault
    if works.values and value not in works.values:
        return f"cannot be {_toml(value)}; what works: {', '.join(map(_toml, works.values))}"
    if works.least is not None and value < works.least:
        return f"cannot be {value}; the least is {works.least}"
    return ""


def _wrong_kind(kind: str, value: object) -> str:
    """`true` is no number, though Python takes it for one."""
    if isinstance(value, KINDS[kind]) and (kind in ("bool", "any") or not isinstance(value, bool)):
        return ""
    return f"must be of type {kind}, not {_toml(value)}"


def _places(config: Config) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """The tables by their paths. A worker's table has `[engine.args]` merged into it, which is
    therefore looked at first."""
    yield "engine.args", config.engine.args
    for role, workers in (("prefill", config.prefill), ("decode", config.decode)):
        for name, worker in workers.items():
            yield f"{role}.{name}.engine.args", worker.engine.args


def _toml(value: object) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    return f'"{value}"' if isinstance(value, str) else str(value)
