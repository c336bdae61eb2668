"""What a worker says of itself to a router first."""

from __future__ import annotations

import os

from common.engine.port import Engine
from common.messages import WIRE_VERSION, Hello
from common.worker.roles import RoleCores


def make_hello(engine: Engine, name: str, incarnation: str, cores: RoleCores, now: float) -> Hello:
    """`now`: in seconds, monotonic."""
    info = engine.info
    return Hello(
        wire_version=WIRE_VERSION,
        role=cores.role,
        name=name,
        incarnation=incarnation,
        pid=os.getpid(),
        fingerprint=info.fingerprint,
        fingerprint_parts=info.fingerprint_parts,
        model=info.model,
        kv_address=info.kv_address,
        capacity=info.capacity,
        adapters=engine.adapters(),
        configured_role=cores.configured if cores.can_change else None,
        role_epoch=cores.epoch,
        role_ms=(now - cores.since) * 1000,
    )
