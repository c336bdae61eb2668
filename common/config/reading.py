"""Reads the fleet file: one TOML file, which every daemon reads strictly and alike.

Theory of operation: the file overrides defaults, and the environment overrides the file
(`BATON_SECTION__KEY=value`, where the value is parsed as TOML, or else taken as a string). A worker
is a table `[prefill.NAME]` or `[decode.NAME]`; its sub-tables `engine` and `kv` override the fleet-
wide `[engine]` and `[kv]` key by key, and on decode workers `speculation` does. A pool is a table
`[pool.NAME]` with a `kv`. A fleet has one model, `[model]`, or a table `[models.NAME]` for each,
and then a worker says which it serves. An unknown key or a bad value is fatal, and the error names
the key's path and what is allowed.
"""

from __future__ import annotations

import os
import re
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal, TypeVar, get_args, get_origin

import msgspec

from common.config.base import NAME_PATTERN, Section
from common.config.exposure import check_control, check_exposure, check_kv
from common.config.modes import (
    check_adapters,
    check_cells,
    check_engines,
    check_mode,
    check_models,
    check_names,
    check_parsers,
    check_pools,
    check_roles,
    check_scale,
    check_stores,
    check_tasks,
    check_warm,
)
from common.config.sections import (
    AdapterConfig,
    Config,
    FleetConfig,
    ModelConfig,
    PoolConfig,
    WorkerConfig,
)
from common.engine.speculation.config_check import check_speculation
from common.engine.vllm.argument_check import check_arguments
from common.errors import ConfigError
from common.messages import Role
from common.process.owned_files import open_trusted

S = TypeVar("S", bound=Section)
#: What has a table for each name.
TABLES: dict[Role, type[WorkerConfig | PoolConfig]] = {
    Role.PREFILL: WorkerConfig,
    Role.DECODE: WorkerConfig,
    Role.POOL: PoolConfig,
}

#: What such a table takes over from the sections of the whole fleet.
PARTS: dict[Role, tuple[str, ...]] = {
    Role.PREFILL: ("engine", "kv"),
    Role.DECODE: ("engine", "kv", "speculation"),
    Role.POOL: ("kv",),
}


def default_run_dir(environ: Mapping[str, str] = os.environ) -> Path:
    """The run directory of `baton up` and `baton ctl` without an argument: BATON_RUN_DIR, or else
    in the user's runtime directory, or else in the folder of the user's state. It is never in a
    folder that users share, where another one could have made it beforehand."""
    chosen = environ.get("BATON_RUN_DIR")
    if chosen:
        return Path(chosen)
    runtime = environ.get("XDG_RUNTIME_DIR")
    if runtime and _is_ours(Path(runtime)):
        return Path(runtime) / "baton"
    state, home = environ.get("XDG_STATE_HOME"), environ.get("HOME")
    if not state and not home:
        return Path(FleetConfig().run_dir)
    return Path(state or f"{home}/.local/state") / "baton" / "run"


def _is_ours(folder: Path) -> bool:
    """Under sudo the variable may still name the folder of another user."""
    try:
        return folder.is_dir() and folder.stat().st_uid == os.geteuid()
    except OSError:
        return False


def load(path: Path, environ: Mapping[str, str] = os.environ) -> Config:
    """Reads, merges and checks the fleet file. Raises ConfigError."""
    return effective(path, environ)[0]


def effective(path: Path, environ: Mapping[str, str]) -> tuple[Config, dict[str, str]]:
    """The config, and for each key that has no default value its source: `file`, or the
    variable."""
    try:
        with open_trusted(path) as file:
            raw = tomllib.load(file)
    except OSError as error:
        raise ConfigError(str(path), f"cannot be read: {error.strerror}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(str(path), f"is not TOML: {error}") from error
    sources = dict.fromkeys(_leaves(raw), "file")
    for variable, value in sorted(environ.items()):
        if not variable.startswith("BATON_") or "__" not in variable:
            continue
        keys = variable.removeprefix("BATON_").lower().split("__")
        _set(raw, keys, _parse(value), variable)
        sources[".".join(keys)] = variable
    return _merged_and_checked(raw), sources


def parse(text: str) -> Config:
    """The config of a fleet file that is not written yet, without the environment. Raises
    ConfigError."""
    return _merged_and_checked(tomllib.loads(text))


def _merged_and_checked(raw: dict[str, Any]) -> Config:
    for role in TABLES:
        _merge_workers(raw, role)
    return from_mapping(raw)


def from_mapping(raw: dict[str, Any]) -> Config:
    """Checks a nested mapping, in which workers and pools have all their keys. Raises ConfigError
    with the path of the first bad key."""
    for role, kind in TABLES.items():
        for name, table in raw.get(role.value, {}).items():
            _convert(table, kind, f"{role}.{name}")
    models = raw.get("models", {})
    if models and "model" in raw:
        raise ConfigError("model", "the file has [models.NAME], too; make it one of them")
    for name, table in models.items() if isinstance(models, dict) else ():
        _convert(table, ModelConfig, f"models.{name}")
        table.setdefault("name", name)
    adapters = raw.get("adapters", {})
    for name, table in adapters.items() if isinstance(adapters, dict) else ():
        _convert(table, AdapterConfig, f"adapters.{name}")
    config = _convert(raw, Config, "")
    if config.models:
        config = msgspec.structs.replace(config, model=next(iter(config.models.values())))
    check_exposure(config)
    check_control(config)
    check_names(config)
    check_models(config)
    check_adapters(config)
    check_tasks(config)
    check_arguments(config)
    check_engines(config)
    check_speculation(config)
    check_kv(config)
    check_stores(config)
    check_pools(config)
    check_warm(config)
    check_roles(config)
    check_scale(config)
    check_cells(config.gateway.cells)
    check_mode(config)
    check_parsers(config)
    return config


def flatten(config: Config) -> list[tuple[str, object]]:
    """Every key with its dotted path and effective value, in the order of the file."""
    builtin = msgspec.to_builtins(config)
    if config.models:
        del builtin["model"]
    return [(path, _at(builtin, path)) for path in _leaves(builtin)]


def _at(table: Any, path: str) -> object:
    for key in path.split("."):
        table = table[key]
    return table


def _merge_workers(raw: dict[str, Any], role: Role) -> None:
    workers = raw.get(role.value, {})
    if not isinstance(workers, dict):
        raise ConfigError(role.value, f"must hold a table for each name, like [{role}.NAME]")
    for name, table in workers.items():
        if not re.match(NAME_PATTERN, name):
            raise ConfigError(f"{role}.{name}", f"a name must match {NAME_PATTERN}")
        if not isinstance(table, dict):
            raise ConfigError(f"{role}.{name}", "must be a table")
        parts = PARTS[role]
        if role is Role.PREFILL and _hands_drafts_over(raw):
            parts = PARTS[Role.DECODE]
        for part in parts:
            base, own = raw.get(part, {}), table.get(part, {})
            args = _model_args(raw, table)
            if part == "engine" and args and isinstance(base, dict):
                base = _merged(base, {"args": args})
            if isinstance(base, dict) and isinstance(own, dict):
                table[part] = _merged(base, own)


def _hands_drafts_over(raw: dict[str, Any]) -> bool:
    """Whether prefill workers run the drafter."""
    speculation = raw.get("speculation", {})
    return isinstance(speculation, dict) and speculation.get("hand_over") is True


def _model_args(raw: dict[str, Any], worker: dict[str, Any]) -> dict[str, Any]:
    """`args` of the model that this worker serves. What is malformed is refused later."""
    models = raw.get("models") or {"": raw.get("model", {})}
    name = worker.get("model", "")
    if not isinstance(models, dict) or not isinstance(name, str):
        return {}
    model = models.get(name) if name else next(iter(models.values()))
    args = model.get("args", {}) if isinstance(model, dict) else {}
    return args if isinstance(args, dict) else {}


def _merged(base: dict[str, Any], over: dict[str, Any]) -> dict[str, Any]:
    result = dict(base)
    for key, value in over.items():
        below = result.get(key)
        both = isinstance(below, dict) and isinstance(value, dict)
        result[key] = _merged(below, value) if both else value  # type: ignore[arg-type]
    return result


def _set(raw: dict[str, Any], keys: list[str], value: object, variable: str) -> None:
    table = raw
    for key in keys[:-1]:
        inner = table.setdefault(key, {})
        if not isinstance(inner, dict):
            raise ConfigError(variable, f"{key} is a value, not a section")
        table = inner
    table[keys[-1]] = value


def _parse(value: str) -> object:
    try:
        return tomllib.loads(f"value = {value}")["value"]
    except tomllib.TOMLDecodeError:
        return value


def _leaves(table: dict[str, Any], prefix: str = "") -> list[str]:
    paths: list[str] = []
    for key, value in table.items():
        path = f"{prefix}{key}"
        paths += _leaves(value, f"{path}.") if isinstance(value, dict) else [path]
    return paths


def _convert(raw: object, kind: type[S], prefix: str) -> S:
    try:
        return msgspec.convert(raw, kind)
    except msgspec.ValidationError as error:
        raise _explained(str(error), kind, prefix) from error


def _explained(text: str, kind: type[Section], prefix: str) -> ConfigError:
    what, _, where = text.partition(" - at `$")
    inner = where.rstrip("`").lstrip(".")
    path = ".".join(part for part in (prefix, inner) if part) or "(top level)"
    field = _field(kind, inner)
    unknown = re.search(r"unknown field `(.+)`", what)
    if unknown and isinstance(field, type) and issubclass(field, Section):
        allowed = ", ".join(known.name for known in msgspec.structs.fields(field))
        return ConfigError(path, f"unknown key {unknown[1]!r}; allowed: {allowed}")
    if get_origin(field) is Literal:
        allowed = ", ".join(repr(value) for value in get_args(field))
        return ConfigError(path, f"{what.replace('`', '')}; allowed: {allowed}")
    return ConfigError(path, what.replace("`", ""))


def _field(kind: Any, path: str) -> Any:
    """The annotation at a dotted path below `kind`."""
    for part in path.split(".") if path else []:
        if not (isinstance(kind, type) and issubclass(kind, Section)):
            return None
        kind = {field.name: field.type for field in msgspec.structs.fields(kind)}.get(part)
    return kind
