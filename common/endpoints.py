"""Every ZeroMQ endpoint: who binds, who connects, how much may wait, and what happens when full.

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

from common.config import Config
from common.errors import ConfigError

IPC_PATH_BYTES_MAX = 107
ENGINE_NAME_BYTES = 36
"""vLLM names its sockets by UUIDs."""
MAIN = "main"


class Pattern(enum.Enum):
    ROUTER = "router"
    DEALER = "dealer"
    PAIR = "pair"
    PUB = "pub"
    SUB = "sub"


@dataclass(frozen=True, slots=True)
class Endpoint:
    """`hwm`: messages that may wait per peer before a send reports FULL."""

    name: str
    binds: Pattern
    connects: Pattern
    hwm: int


CONTROL = Endpoint("control", Pattern.ROUTER, Pattern.DEALER, hwm=16_384)
STREAM = Endpoint("stream", Pattern.ROUTER, Pattern.DEALER, hwm=16_384)
ADMIN = Endpoint("admin", Pattern.ROUTER, Pattern.DEALER, hwm=256)
KV_SIDE = Endpoint("kv_side", Pattern.PAIR, Pattern.PAIR, hwm=16_384)
KV_EVENTS = Endpoint("events", Pattern.PUB, Pattern.SUB, hwm=16_384)

ENDPOINTS = (CONTROL, STREAM, ADMIN, KV_SIDE, KV_EVENTS)


def control_address(config: Config, router: str = MAIN) -> str:
    """Where this router binds; one that is no standby of the file is the main one."""
    if router in config.router.standby:
        return config.router.standby[router] or _ipc(config, f"{router}.control.sock")
    return config.router.control or _ipc(config, "control.sock")


def control_addresses(config: Config) -> dict[str, str]:
    """Of every router of the fleet, by name, the main one first."""
    names = (MAIN, *config.router.standby)
    return {name: control_address(config, name) for name in names}


def admin_address(config: Config, router: str = MAIN) -> str:
    if router in config.router.standby:
        return _ipc(config, f"{router}.admin.sock")
    return _ipc(config, "admin.sock")


def stream_address(config: Config, gateway: str) -> str:
    """Where this gateway binds; what it announces is the bound address (port 0 resolved)."""
    return config.gateway.stream_bind or _ipc(config, f"{gateway}.stream.sock")


def kv_side_address(config: Config, worker: str, rank: int = 0) -> str:
    return _ipc(config, f"{worker}.kv{rank}.sock" if rank else f"{worker}.kv.sock")


def kv_events_address(config: Config, worker: str) -> str:
    return _ipc(config, f"{worker}.events.sock")


def engine_sockets(config: Config, worker: str) -> Path | None:
    """Directory for the sockets that an engine makes for itself, under names of its own; None:
    `fleet.run_dir` leaves no room for those names."""
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
