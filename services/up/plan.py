"""From flags to a fleet: the configuration that `baton up` writes and the children that it starts.

Pure: the result depends on the arguments only. The order of `children` is the order of start;
drains go the other way round, gateway first (`STOP_ORDER`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

from common.config import Config, ModelConfig
from common.engine.vllm.args import worker_environment
from common.errors import ConfigError
from common.messages import Role

WORKERS_MAX = 64
GATEWAYS_MAX = 64
POOLS_MAX = 16
GPU_MEMORY_SHARE = 0.9
STORE_MIB = 256
"""Of each worker's store, and of each pool, where there are pools."""
LETTERS = {Role.PREFILL: "p", Role.DECODE: "d", Role.POOL: "s"}
STOP_ORDER = (Role.GATEWAY, Role.DECODE, Role.PREFILL, Role.POOL, Role.HEALTH, Role.ROUTER)


@dataclass(frozen=True, slots=True)
class Flags:
    """The command line of `baton up`."""

    #: The place of each model, and what clients call it; empty = the last part of its path.
    models: tuple[tuple[str, str], ...]
    #: Workers of each model.
    prefill: int
    decode: int
    engine: str
    host: str
    port: int
    health_port: int
    run_dir: str
    #: CPU cores of the host, shared among the workers.
    cores: int
    #: Indices of the GPUs to spread the workers over; empty on a CPU host.
    gpus: tuple[int, ...] = ()
    gateways: int = 1
    routers: int = 1
    keys_file: str = ""
    allow_anonymous: bool = False
    mode: str = "disaggregated"
    #: Pools of each model.
    pools: int = 0
    #: Fleets behind the gateway; the first is that of the main fleet file.
    cells: int = 1


@dataclass(frozen=True, slots=True)
class Child:
    """One daemon to run."""

    role: Role
    name: str
    #: Variables added to the environment of the supervisor.
    environment: dict[str, str] = field(default_factory=dict)
    #: Its cell, which has a folder of this name in the run directory, with a fleet file; empty for
    #: the fleet of the main file.
    cell: str = ""

    @property
    def label(self) -> str:
        """Its name among the children of all cells."""
        return f"{self.cell}/{self.name}" if self.cell else self.name

    @property
    def is_worker(self) -> bool:
        return self.role in (Role.PREFILL, Role.DECODE)

    def parts(self, config: Config) -> tuple[Role, ...]:
        """As what routers count it once it is ready."""
        mixed = self.is_worker and config.worker(self.role, self.name).role == "mixed"
        return Role.MIXED.parts if mixed else (self.role,)


def cell_names(flags: Flags) -> list[str]:
    """Empty if there is one fleet only."""
    return [f"c{index}" for index in range(flags.cells)] if flags.cells > 1 else []


def cell_flags(flags: Flags, cell: str) -> Flags:
    """Those of the fleet of this cell, which has no gateway of its own."""
    number = cell_names(flags).index(cell)
    run_dir = f"{flags.run_dir}/{cell}"
    return replace(flags, run_dir=run_dir, health_port=flags.health_port + number, cells=0)


def fleet_toml(flags: Flags) -> str:
    """The fleet file of these flags, as text a person can keep and edit."""
    return "\n".join(_lines(flags, max(1, flags.cells))) + "\n"


def _lines(flags: Flags, cells: int) -> list[str]:
    workers = (flags.prefill + flags.decode) * len(flags.models) * cells
    threads = max(1, flags.cores // max(1, workers))
    lines = [
        "# Written by `baton up`. Copy it, edit it, and start it with `baton up --config FILE`.",
        "[fleet]",
        f"run_dir = {_quoted(flags.run_dir)}",
        *_models(flags),
        "[engine]",
        f"kind = {_quoted(flags.engine)}",
        f"threads = {threads}",
        *_gpu_share(flags, workers),
        *_store(flags),
        "[router]",
        f"mode = {_quoted(flags.mode)}",
        "[gateway]",
        f"host = {_quoted(flags.host)}",
        f"port = {flags.port}",
        f"processes = {flags.gateways}",
        *_access(flags),
        *_cells(flags),
        "[health]",
        f"port = {flags.health_port}",
    ]
    if flags.routers > 1:
        lines += ["[router.standby]", *[f'r{i} = ""' for i in range(1, flags.routers)]]
    lines += _workers(flags, Role.PREFILL, flags.prefill)
    lines += _workers(flags, Role.DECODE, flags.decode)
    lines += _workers(flags, Role.POOL, flags.pools)
    return lines


def _cells(flags: Flags) -> list[str]:
    """The first is the fleet of this file."""
    lines: list[str] = []
    for number, cell in enumerate(cell_names(flags)):
        lines.append(f"[gateway.cells.{cell}]")
        if number:
            lines.append(f"run_dir = {_quoted(f'{flags.run_dir}/{cell}')}")
            standbys = [f'r{i} = ""' for i in range(1, flags.routers)]
            lines += [f"standby = {{ {', '.join(standbys)} }}"] if standbys else []
    return lines


def _models(flags: Flags) -> list[str]:
    lines: list[str] = []
    for path, name in flags.models:
        several = f"[models.{_quoted(served_name(path, name))}]"
        lines.append(several if len(flags.models) > 1 else "[model]")
        lines += [f"path = {_quoted(path)}", f"name = {_quoted(name)}"]
    return lines


def _store(flags: Flags) -> list[str]:
    """Workers have what pools get KV out of."""
    return ["[kv.store]", f"ram_mib = {STORE_MIB}"] if flags.pools else []


def _workers(flags: Flags, role: Role, count: int) -> list[str]:
    """So many of each model, one model after the other."""
    letter = LETTERS[role]
    lines: list[str] = []
    for number, (path, name) in enumerate(flags.models):
        for index in range(number * count, (number + 1) * count):
            lines.append(f"[{role}.{letter}{index}]")
            if len(flags.models) > 1:
                lines.append(f"model = {_quoted(served_name(path, name))}")
    return lines


def served_name(path: str, name: str) -> str:
    """What clients call the model."""
    return ModelConfig(path=path, name=name).served_name


def children(
    prefill: list[str],
    decode: list[str],
    gpus: tuple[int, ...],
    gateways: int = 1,
    standby: tuple[str, ...] = (),
    pools: tuple[str, ...] = (),
    *,
    cell: str = "",
    gpu_offset: int = 0,
) -> list[Child]:
    """Routers, gateways and pools first (they are up in a second), then workers, a GPU each in
    turn, from `gpu_offset` on. Raises ConfigError for two daemons of one name, whose sockets and
    logs would be alike."""
    fleet = [Child(Role.ROUTER, name) for name in ("r0", *standby)]
    fleet += [Child(Role.GATEWAY, f"g{index}") for index in range(gateways)]
    fleet.append(Child(Role.HEALTH, "h0"))
    fleet += [Child(Role.POOL, name) for name in pools]
    workers = [(Role.PREFILL, name) for name in prefill] + [(Role.DECODE, name) for name in decode]
    for index, (role, name) in enumerate(workers):
        gpu = {"CUDA_VISIBLE_DEVICES": str(gpus[(index + gpu_offset) % len(gpus)])} if gpus else {}
        fleet.append(Child(role, name, gpu))
    roles: dict[str, Role] = {}
    for child in fleet:
        if child.name in roles:
            other = roles[child.name]
            sentence = f"the {other} has the same name; give it one of its own"
            raise ConfigError(f"{child.role}.{child.name}", sentence)
        roles[child.name] = child.role
    return [replace(child, cell=cell) for child in fleet]


def library_environment(
    config: Config, child: Child, given: Mapping[str, str]
) -> dict[str, str] | None:
    """The environment in which this child imports vLLM. None if it does not, or has a GPU, which
    does not survive a fork. `given`: the supervisor's. Raises ConfigError."""
    if not child.is_worker or child.environment:
        return None
    engine = config.worker(child.role, child.name).engine
    if engine.kind != "vllm":
        return None
    return worker_environment(config.of_worker(child.role, child.name), engine, given)


def shared_environment(
    config: Config, fleet: Iterable[Child], given: Mapping[str, str]
) -> dict[str, str] | None:
    """The one in which most children import vLLM; None if none does."""
    made = [library_environment(config, child, given) for child in fleet]
    importing = [environment for environment in made if environment is not None]
    return max(importing, key=importing.count, default=None)


def _access(flags: Flags) -> list[str]:
    lines = [f"keys_file = {_quoted(flags.keys_file)}"] if flags.keys_file else []
    return [*lines, "allow_anonymous = true"] if flags.allow_anonymous else lines


def _gpu_share(flags: Flags, workers: int) -> list[str]:
    """Workers that share a GPU share its memory; one alone takes what vLLM takes by itself."""
    sharing = -(-workers // len(flags.gpus)) if flags.gpus else 1
    if sharing == 1:
        return []
    return ["[engine.args]", f"gpu_memory_utilization = {GPU_MEMORY_SHARE / sharing:.3f}"]


def _quoted(text: str) -> str:
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'
