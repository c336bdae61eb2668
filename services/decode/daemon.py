"""The decode daemon: receives KV by ticket, samples, streams tokens straight to the gateways."""

from __future__ import annotations

from common.clock import SystemClock
from common.config import Config
from common.engine.port import Engine
from common.messages import Role
from common.telemetry.log import Logger
from common.worker.daemon import Worker
from services.decode.core import DecodeCore
from services.decode.grant_limit import grant_limit_of
from services.decode.links import GatewayLinks


def make(config: Config, name: str, incarnation: str, engine: Engine, log: Logger) -> Worker:
    """Makes the daemon, inside the running loop and with an engine that is already open."""
    core = DecodeCore(
        name, incarnation, grant_limit_of(engine.info.capacity, config.router.kv_grant_max)
    )
    worker = Worker(
        config,
        role=Role.DECODE,
        name=name,
        incarnation=incarnation,
        engine=engine,
        core=core,
        clock=SystemClock(),
        log=log,
    )
    worker.set_gateways(GatewayLinks(name, incarnation, worker.handle, log, worker.curve))
    return worker
