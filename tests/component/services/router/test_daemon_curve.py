"""A router with keys: a worker whose key is revoked is ejected like a silent one."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import structlog

from common.config import Config, FleetConfig, LivenessConfig, RouterConfig, SecurityConfig
from common.messages import Beat, Load, Role
from common.net.admin_client import ask
from common.net.endpoints import admin_address
from common.net.wire import encode
from common.process.lifecycle import Tasks
from services.router.daemon import make
from tests.component.common.security.curve_rig import Hosts
from tests.fleet.running import free_port
from tests.rigs.messages import worker_hello
from tests.rigs.peers import Peer

SECONDS = 20.0


def config_of(run_dir: Path, keys: Path) -> Config:
    return Config(
        fleet=FleetConfig(run_dir=str(run_dir), drain_ms=100.0),
        router=RouterConfig(
            control=f"tcp://127.0.0.1:{free_port()}",
            worker_timeout_ms=500.0,
            liveness=LivenessConfig(rebuild_ms=0.0),
        ),
        security=SecurityConfig(keys_dir=str(keys)),
    )


async def state_of(config: Config, worker: Peer, wanted: str) -> None:
    """Until the router says so, while the worker beats on."""
    async with asyncio.timeout(SECONDS):
        while True:
            worker.socket.send([encode(Beat(load=Load()))])
            rows = (await ask(admin_address(config), "workers")).result
            if [row["state"] for row in rows] == [wanted]:
                return


async def test_a_worker_whose_key_is_revoked_is_ejected_though_it_speaks(tmp_path: Path) -> None:
    hosts = Hosts(tmp_path / "keys", "router", "worker")
    config = config_of(tmp_path, tmp_path / "keys" / "router")
    tasks, daemon = Tasks(), make(config, "r0", structlog.get_logger("test"))
    await daemon.start(tasks)
    try:
        worker = hosts.end(hosts.curve("worker"), "d0|1", connect=config.router.control)
        await worker.up()
        worker.socket.send([encode(worker_hello(Role.DECODE, "d0"))])
        await state_of(config, worker, "ready")
        hosts.keys.revoke("worker")
        await state_of(config, worker, "ejected")
        status: dict[str, Any] = (await ask(admin_address(config), "status")).result
        assert status["dropped"]["peer refused: revoked_key"] > 0
        assert not tasks.failed.done()
    finally:
        hosts.close()
        await daemon.stop()
        await tasks.cancel_all()
