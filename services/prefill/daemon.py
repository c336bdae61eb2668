"""The prefill daemon: computes the KV of prompts and hands it to decode workers by ticket."""

from __future__ import annotations

from common.clock import SystemClock
from common.config import Config
from common.engine.port import Engine
from common.messages import Role
from common.telemetry.log import Logger
from common.worker.daemon import Worker
from services.prefill.core import PrefillCore


def make(config: Config, name: str, incarnation: str, engine: Engine, log: Logger) -> Worker:
    """Makes the daemon, inside the running loop and with an engine that is already open."""
    core = PrefillCore(name, incarnation, engine.info.capacity.max_num_seqs)
    return Worker(
        config,
        role=Role.PREFILL,
        name=name,
        incarnation=incarnation,
        engine=engine,
        core=core,
        clock=SystemClock(),
        log=log,
    )
