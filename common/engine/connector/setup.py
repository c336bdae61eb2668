"""What the daemon tells its connector."""

from __future__ import annotations

import msgspec

from common.config import KvConfig


class Setup(msgspec.Struct, frozen=True):
    """What the daemon passes to its connector in `kv_connector_extra_config`."""

    #: Name of the worker.
    name: str
    incarnation: str
    fingerprint: str
    #: Where the daemon binds the side channel, for each rank.
    side_addresses: list[str]
    daemon_pid: int
    kv: KvConfig
    #: As in `WorkerIdentity`.
    kv_secrets_file: str = ""
    #: As `Capacity.kv_meaning`, if this engine's KV turns out to have a canonical form.
    meaning: str = ""
    #: As `Capacity.kv_lossy_meaning`, on the same condition.
    lossy_meaning: str = ""
    #: Whether the KV of a drafter is handed over with the model's.
    draft_layers: bool = False
