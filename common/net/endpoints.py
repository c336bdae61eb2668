"""Every ZeroMQ endpoint: who binds, who connects, how many messages wait, and what happens then.

| endpoint | binds          | connects               | when the peer's queue is full           |
|----------|----------------|------------------------|-----------------------------------------|
| control  | router ROUTER  | gateway, worker DEALER | the peer is treated as lost             |
| stream   | gateway ROUTER | decode DEALER          | D aborts its streams of that gateway    |
| admin    | router ROUTER  | `baton ctl` DEALER     | the answer is dropped, the client waits |
| kv_side  | worker PAIR    | its engine's KV thread | the engine is treated as hung           |
| events   | vLLM PUB       | its worker's SUB       | events are lost, which their numbers say |

Default addresses are ipc sockets in the run directory (mode 0660); a fleet over several hosts names
tcp endpoints in its configuration.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass
from pathlib import Path

from common.config import Config, FleetConfig, RouterConfig
from common.config.gateway import is_own
from common.errors import ConfigError
from common.messages import Role
from common.net.wire import BODY_BYTES_MAX, FRAME_BYTES_MAX

IPC_PATH_BYTES_MAX = 107
ENGINE_NAME_BYTES = 36
"""Length of the names that vLLM gives its sockets, which are UUIDs."""
MAIN = "main"


class Pattern(enum.Enum):
    ROUTER = "router"
    DEALER = "dealer"
    PAIR = "pair"
    PUB = "pub"
    SUB = "sub"


@dataclass(frozen=True, slots=True)
class Endpoint:
    """One row of the table above."""

    name: str
    #: Socket type of the side that binds.
    binds: Pattern
    #: Socket type of the side that connects.
    connects: Pattern
    #: Messages that may wait per peer before a send reports FULL.
    hwm: int
    #: Bytes of a frame; a peer that sends a larger one is disconnected.
    frame_bytes_max: int = FRAME_BYTES_MAX


CONTROL = Endpoint(
    "control", Pattern.ROUTER, Pattern.DEALER, hwm=16_384, frame_bytes_max=BODY_BYTES_MAX
)
STREAM = Endpoint("stream", Pattern.ROUTER, Pattern.DEALER, hwm=16_384)
ADMIN = Endpoint("admin", Pattern.ROUTER, Pattern.DEALER, hwm=256)
KV_SIDE = Endpoint("kv_side", Pattern.PAIR, Pattern.PAIR, hwm=16_384)
KV_EVENTS = Endpoint("events", Pattern.PUB, Pattern.SUB, hwm=16_384)

ENDPOINTS = (CONTROL, STREAM, ADMIN, KV_SIDE, KV_EVENTS)


def check_socket_paths(config: Config) -> None:
    """Raises ConfigError if `fleet.run_dir` is too long for a socket of the fleet's daemons."""
    workers = [*config.prefill, *config.decode, *config.pool]
    names = [*workers, *config.router.standby, f"g{config.gateway.processes - 1}"]
    _ipc(config, f"{Role.PREFILL}.{max(names, key=len)}.metrics.sock")  # no name is longer


def control_address(config: Config, router: str = MAIN) -> str:
    """Where this router binds. A name that is no standby of the file is the main router's."""
    if router in config.router.standby:
        return config.router.standby[router] or _ipc(config, f"{router}.control.sock")
    return config.router.control or _ipc(config, "control.sock")


def control_addresses(config: Config) -> dict[str, str]:
    """The addresses of all routers of the fleet, by name, the main one first."""
    names = (MAIN, *config.router.standby)
    return {name: control_address(config, name) for name in names}


def cell_addresses(config: Config, cell: str) -> dict[str, str]:
    """The control addresses of a cell's routers, by their names behind that of the cell, the main
    one first."""
    chosen = config.gateway.cells[cell]
    if is_own(chosen):
        return {f"{cell}/{name}": at for name, at in control_addresses(config).items()}
    file = config_of_cell(config, cell)
    return {f"{cell}/{name}": at for name, at in control_addresses(file).items()}


def config_of_cell(config: Config, cell: str) -> Config:
    """As much of the cell's fleet file as this one knows: where its routers are."""
    chosen = config.gateway.cells[cell]
    if is_own(chosen):
        return config
    router = RouterConfig(control=chosen.control, standby=chosen.standby)
    return Config(fleet=FleetConfig(run_dir=chosen.run_dir), router=router)


def admin_address(config: Config, router: str = MAIN) -> str:
    """Where this router binds its admin socket."""
    if router in config.router.standby:
        return _ipc(config, f"{router}.admin.sock")
    return _ipc(config, "admin.sock")


def stream_address(config: Config, gateway: str) -> str:
    """Where this gateway binds. It announces the bound address, in which port 0 is resolved."""
    return config.gateway.stream_bind or _ipc(config, f"{gateway}.stream.sock")


def kv_side_address(config: Config, worker: str, rank: int = 0) -> str:
    """Where a worker binds the side channel to the KV thread of this rank."""
    return _ipc(config, f"{worker}.kv{rank}.sock" if rank else f"{worker}.kv.sock")


def kv_events_address(config: Config, worker: str) -> str:
    """Where a worker's vLLM publishes KV events."""
    return _ipc(config, f"{worker}.events.sock")


def engine_sockets(config: Config, worker: str) -> Path | None:
    """Directory for the sockets that an engine makes under names of its own; None if
    `fleet.run_dir` is too long for such names."""
    path = Path(config.fleet.run_dir).absolute() / f"{worker}.engine"
    room = IPC_PATH_BYTES_MAX - len(str(path).encode())
    return path if room > ENGINE_NAME_BYTES else None


def _ipc(config: Config, file: str) -> str:
    path = Path(config.fleet.run_dir).absolute() / file
    if len(str(path).encode()) > IPC_PATH_BYTES_MAX:
        raise ConfigError(
            "fleet.run_dir",
            f"{path} is longer than the {IPC_PATH_BYTES_MAX} bytes a unix socket may have; "
            "choose a shorter run_dir",
        )
    return f"ipc://{path}"
