"""A real router daemon in this loop, with peers that speak to it over ipc."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import structlog

from common.config import Config, FleetConfig, LivenessConfig, ModelConfig, RouterConfig
from common.messages import RouterToGateway, RouterToWorker
from common.net.endpoints import admin_address, control_address
from common.process.lifecycle import Tasks
from common.process.watchdog_and_reload import WatchdogAndReload
from services.router.daemon import Router, make
from tests.rigs.peers import Peer


class Running:
    def __init__(self, config: Config, router: Router, tasks: Tasks) -> None:
        self.config = config
        self.router = router
        self.tasks = tasks
        self.admin = admin_address(config)
        self.peers: list[Peer] = []

    async def peer(self, identity: str) -> Peer:
        """Connected."""
        address, kinds = control_address(self.config), RouterToGateway | RouterToWorker
        self.peers.append(Peer(address, kinds, identity=identity))
        await self.peers[-1].up()
        return self.peers[-1]


@asynccontextmanager
async def running(
    run_dir: Path, watchdog_and_reload: WatchdogAndReload | None = None, **router: Any
) -> AsyncIterator[Running]:
    fleet = FleetConfig(run_dir=str(run_dir), drain_ms=500.0)
    router.setdefault("liveness", LivenessConfig(rebuild_ms=0.0))
    model = ModelConfig(name="model")
    config = Config(fleet=fleet, model=model, router=RouterConfig(**router))
    tasks = Tasks(watchdog_and_reload)
    daemon = make(config, "r0", structlog.get_logger("test"))
    await daemon.start(tasks)
    live = Running(config, daemon, tasks)
    try:
        yield live
        assert not tasks.failed.done(), tasks.failed.result()
    finally:
        for peer in live.peers:
            peer.close()
        await daemon.stop()
        assert await tasks.cancel_all() == []
