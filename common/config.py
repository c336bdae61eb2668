"""The fleet file: one TOML file, strict, read the same by every daemon.

Theory of operation: defaults < file < environment (`BATON_SECTION__KEY=value`, value parsed as
TOML, else taken as a string). A worker is a table `[prefill.NAME]` or `[decode.NAME]`; its `engine`
and `kv` sub-tables override the fleet-wide `[engine]` and `[kv]` key by key. An unknown key or a
bad value is fatal and names the key's path and what is allowed. All structs are frozen; units are
in the names.
"""

from __future__ import annotations

import os
import re
import tempfile
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar, get_args, get_origin

import msgspec
from msgspec import Meta

from common.errors import ConfigError
from common.messages import Role

Port = Annotated[int, Meta(ge=0, le=65535)]
Count = Annotated[int, Meta(ge=1)]
Milliseconds = Annotated[float, Meta(ge=0)]
Positive = Annotated[float, Meta(gt=0)]
NAME_PATTERN = r"^[a-z0-9][a-z0-9-]{0,31}$"


class Section(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Base of all sections: frozen and strict."""


S = TypeVar("S", bound=Section)


class FleetConfig(Section, frozen=True):
    """`run_dir`: sockets and state of this host's daemons, mode 0750. `drain_ms`: how long a daemon
    that was told to stop lets its work finish."""

    run_dir: str = "/run/baton"
    log_level: Literal["debug", "info", "warning", "error"] = "info"
    drain_ms: Milliseconds = 30_000.0


class ModelConfig(Section, frozen=True):
    """`path`: a Hugging Face folder or id; `baton-tiny` is the embedded model. `name`: what clients
    call it (default: the path's last part). `max_model_len`: tokens, 0 = the model's own."""

    path: str = "baton-tiny"
    name: str = ""
    max_model_len: Annotated[int, Meta(ge=0)] = 0
    dtype: Literal["auto", "float32", "bfloat16", "float16"] = "auto"

    @property
    def served_name(self) -> str:
        return self.name or self.path.rstrip("/").rsplit("/", 1)[-1]


class SimConfig(Section, frozen=True):
    """Timing of the simulated engine. A prefill of n tokens takes n / prefill_tokens_per_s; a
    decode step takes decode_step_ms + decode_step_ms_per_seq x batch."""

    prefill_tokens_per_s: Positive = 20_000.0
    decode_step_ms: Milliseconds = 10.0
    decode_step_ms_per_seq: Milliseconds = 0.0
    kv_blocks: Count = 2048
    kv_block_bytes: Count = 65_536


class EngineConfig(Section, frozen=True):
    """`block_tokens`: 0 = engine's own (128 on CPU). `kv_cache_mib`: 0 = engine's own choice.
    `threads`: OpenMP threads, 0 = cores shared evenly. `args`: further vLLM engine arguments."""

    kind: Literal["vllm", "sim"] = "vllm"
    block_tokens: Annotated[int, Meta(ge=0)] = 0
    kv_cache_mib: Annotated[int, Meta(ge=0)] = 0
    max_num_seqs: Count = 64
    max_num_batched_tokens: Count = 2048
    threads: Annotated[int, Meta(ge=0)] = 0
    prefix_caching: bool = True
    args: dict[str, Any] = {}
    sim: SimConfig = SimConfig()


class KvConfig(Section, frozen=True):
    """The data plane of one worker. `host`/`port`: where its UCX listener binds (0 = any free
    port). `transports`: UCX_TLS. `message_bytes`: payload of one message. `staging_mib`: bound of
    staging memory on each side. `lease_ms`: how long P holds blocks that nobody took.
    `load_timeout_ms`: how long D waits for a handoff before it computes the prompt itself."""

    host: str = "127.0.0.1"
    port: Port = 0
    transports: str = "tcp,sm,self"
    message_bytes: Annotated[int, Meta(ge=4096)] = 4 << 20
    staging_mib: Count = 64
    lease_ms: Annotated[float, Meta(ge=100)] = 30_000.0
    load_timeout_ms: Annotated[float, Meta(ge=100)] = 60_000.0
    retries: Annotated[int, Meta(ge=0, le=10)] = 3


class GatewayConfig(Section, frozen=True):
    """`stream_bind`: ZMQ endpoint on which decode workers deliver tokens; empty = an ipc socket in
    run_dir. `router_wait_ms`: how long new work is held while no router answers."""

    host: str = "127.0.0.1"
    port: Port = 8000
    stream_bind: str = ""
    text: Literal["light"] = "light"
    body_bytes_max: Count = 8 << 20
    max_streams: Count = 4096
    router_wait_ms: Milliseconds = 5_000.0
    default_max_tokens: Annotated[int, Meta(ge=0)] = 0
    slow_client_bytes_max: Count = 1 << 20
    slow_client_ms_max: Milliseconds = 10_000.0


class RouterConfig(Section, frozen=True):
    """`control`: ZMQ endpoint; empty = an ipc socket in run_dir. `max_active`: requests placed at
    once; 0 = sum of the decode workers' max_num_seqs. `max_queue`: requests waiting."""

    control: str = ""
    max_active: Annotated[int, Meta(ge=0)] = 0
    max_queue: Annotated[int, Meta(ge=0)] = 1024
    queue_bytes_max: Count = 256 << 20
    kv_grant_max: Annotated[float, Meta(gt=0, le=1)] = 0.95
    worker_timeout_ms: Annotated[float, Meta(ge=200)] = 3_000.0
    history: Count = 1024


class HealthConfig(Section, frozen=True):
    host: str = "127.0.0.1"
    port: Port = 9400
    interval_ms: Annotated[float, Meta(ge=100)] = 2_000.0


class WorkerConfig(Section, frozen=True):
    """One prefill or decode worker, its engine and kv tables already merged over the fleet's."""

    engine: EngineConfig = EngineConfig()
    kv: KvConfig = KvConfig()


class Config(Section, frozen=True):
    fleet: FleetConfig = FleetConfig()
    model: ModelConfig = ModelConfig()
    engine: EngineConfig = EngineConfig()
    kv: KvConfig = KvConfig()
    gateway: GatewayConfig = GatewayConfig()
    router: RouterConfig = RouterConfig()
    health: HealthConfig = HealthConfig()
    prefill: dict[str, WorkerConfig] = {}
    decode: dict[str, WorkerConfig] = {}

    def worker(self, role: Role, name: str) -> WorkerConfig:
        """Raises ConfigError when the file has no such worker."""
        table = self.prefill if role is Role.PREFILL else self.decode
        if name not in table:
            known = ", ".join(table) or "none"
            raise ConfigError(f"{role}.{name}", f"no such worker in the file (there: {known})")
        return table[name]


def default_run_dir(environ: Mapping[str, str] = os.environ) -> Path:
    """Where `baton up` and `baton ctl` meet when nobody says: BATON_RUN_DIR, else the user's
    runtime directory, else a private folder under /tmp."""
    chosen = environ.get("BATON_RUN_DIR")
    if chosen:
        return Path(chosen)
    runtime = environ.get("XDG_RUNTIME_DIR")
    if runtime and Path(runtime).is_dir():
        return Path(runtime) / "baton"
    return Path(tempfile.gettempdir()) / f"baton-{os.getuid()}"


def load(path: Path, environ: Mapping[str, str] = os.environ) -> Config:
    """Reads, merges and checks the fleet file. Raises ConfigError."""
    return effective(path, environ)[0]


def effective(path: Path, environ: Mapping[str, str]) -> tuple[Config, dict[str, str]]:
    """The config, and for each key that is not a default its source (`file`, or the variable)."""
    try:
        raw = tomllib.loads(path.read_text(encoding="utf-8"))
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
    for role in (Role.PREFILL, Role.DECODE):
        _merge_workers(raw, role)
    return from_mapping(raw), sources


def from_mapping(raw: dict[str, Any]) -> Config:
    """Checks a nested mapping. Raises ConfigError with the path of the first bad key."""
    for role in (Role.PREFILL, Role.DECODE):
        for name, table in raw.get(role.value, {}).items():
            _convert(table, WorkerConfig, f"{role}.{name}")
    return _convert(raw, Config, "")


def flatten(config: Config) -> list[tuple[str, object]]:
    """Every key with its dotted path and effective value, in the order of the file."""
    builtin = msgspec.to_builtins(config)
    return [(path, _at(builtin, path)) for path in _leaves(builtin)]


def _at(table: Any, path: str) -> object:
    for key in path.split("."):
        table = table[key]
    return table


def _merge_workers(raw: dict[str, Any], role: Role) -> None:
    workers = raw.get(role.value, {})
    if not isinstance(workers, dict):
        raise ConfigError(role.value, "must hold one table per worker, like [prefill.p0]")
    for name, table in workers.items():
        if not re.match(NAME_PATTERN, name):
            raise ConfigError(f"{role}.{name}", f"a worker name must match {NAME_PATTERN}")
        if not isinstance(table, dict):
            raise ConfigError(f"{role}.{name}", "must be a table")
        for part in ("engine", "kv"):
            base, own = raw.get(part, {}), table.get(part, {})
            if isinstance(base, dict) and isinstance(own, dict):
                table[part] = _merged(base, own)


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
        allowed = ", ".join(each.name for each in msgspec.structs.fields(field))
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
        kind = {each.name: each.type for each in msgspec.structs.fields(kind)}.get(part)
    return kind
