"""The worker daemon: the cores of a prefill and of a decode worker, over one engine.

Its table in the fleet file says which of the two is in force at first; an order may change that
while it runs (`common/worker/roles.py`). Only the command line imports it.
"""

from __future__ import annotations

from common.clock import SystemClock
from common.config import Config
from common.engine.port import Engine
from common.messages import Role
from common.telemetry.log import Logger
from common.worker.actions import WorkerCore
from common.worker.daemon import Worker
from services.decode.core import DecodeCore
from services.decode.grant_limit import grant_limit_of
from services.decode.links import GatewayLinks
from services.prefill.core import PrefillCore


def make(
    config: Config, role: Role, name: str, incarnation: str, engine: Engine, log: Logger
) -> Worker:
    """Makes the daemon, inside the running loop and with an engine that is already open."""
    info, capacity = engine.info, engine.info.capacity
    router = config.router
    limit = grant_limit_of(capacity, router.kv_grant_max, router.slots_ahead_max)
    cold, step_tokens = info.drafter_cold, info.step_tokens
    decode = DecodeCore(name, incarnation, limit, drafter_cold=cold, step_tokens=step_tokens)
    cores: dict[Role, WorkerCore] = {Role.DECODE: decode}
    if info.pooling is None:  # else nothing is handed over, and the role is for life
        cores[Role.PREFILL] = PrefillCore(name, incarnation, capacity.max_num_seqs)
    worker = Worker(
        config,
        role=role,
        name=name,
        incarnation=incarnation,
        engine=engine,
        cores=cores,
        clock=SystemClock(),
        log=log,
    )
    worker.set_gateways(GatewayLinks(name, incarnation, worker.handle, log, worker.curve))
    return worker
