"""A real router daemon in this loop, with peers that speak to it over ipc."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import structlog

from common.config import Config, FleetConfig, LivenessConfig, RouterConfig
from common.messages import Message, RouterToGateway, RouterToWorker
from common.net.endpoints import CONTROL, admin_address, control_address
from common.net.sockets import Socket
from common.net.wire import Decoder, encode
from common.process.lifecycle import Tasks
from common.process.watchdog_and_reload import WatchdogAndReload
from services.router.daemon import Router, make

SECONDS = 5.0


class Peer:
    """One DEALER with an identity; `read` gives the next message that is not a Ping."""

    def __init__(self, address: str, identity: str) -> None:
        self._inbox: asyncio.Queue[list[bytes]] = asyncio.Queue()
        self._decoder: Decoder[Message] = Decoder(RouterToGateway | RouterToWorker)
        self._connected = asyncio.Event()
        self.socket = Socket(
            CONTROL,
            connect=address,
            identity=identity.encode(),
            on_frames=self._inbox.put_nowait,
            on_connected=self._connected.set,
        )
        self.socket.start()

    async def send(self, message: Message, *more: bytes) -> None:
        await self.send_frames(encode(message), *more)

    async def send_frames(self, *frames: bytes) -> None:
        async with asyncio.timeout(SECONDS):
            await self._connected.wait()
        assert self.socket.send(list(frames))

    async def read(self, *kinds: type[Message]) -> Any:
        """The next message of these kinds; others are skipped."""
        async with asyncio.timeout(SECONDS):
            while True:
                message = self._decoder.decode((await self._inbox.get())[0])
                if isinstance(message, kinds):
                    return message


class Running:
    def __init__(self, config: Config, router: Router, tasks: Tasks) -> None:
        self.config = config
        self.router = router
        self.tasks = tasks
        self.admin = admin_address(config)
        self.peers: list[Peer] = []

    def peer(self, identity: str) -> Peer:
        self.peers.append(Peer(control_address(self.config), identity))
        return self.peers[-1]


@asynccontextmanager
async def running(
    run_dir: Path, watchdog_and_reload: WatchdogAndReload | None = None, **router: Any
) -> AsyncIterator[Running]:
    fleet = FleetConfig(run_dir=str(run_dir), drain_ms=500.0)
    router.setdefault("liveness", LivenessConfig(rebuild_ms=0.0))
    config = Config(fleet=fleet, router=RouterConfig(**router))
    tasks = Tasks(watchdog_and_reload)
    daemon = make(config, "r0", structlog.get_logger("test"))
    await daemon.start(tasks)
    live = Running(config, daemon, tasks)
    try:
        yield live
        assert not tasks.failed.done(), tasks.failed.result()
    finally:
        for peer in live.peers:
            peer.socket.close()
        await daemon.stop()
        assert await tasks.cancel_all() == []
