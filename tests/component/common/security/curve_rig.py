"""Hosts with keys, and sockets of theirs over TCP on loopback."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from pathlib import Path

import structlog

from common.config import Config, SecurityConfig
from common.net.endpoints import CONTROL
from common.net.sockets import Curve, Socket
from common.security.open import open_curve
from services.keygen.folder import KeyFolder

SECONDS = 10.0
ANY_PORT = "tcp://127.0.0.1:0"


class Hosts:
    """A key folder, used in place: DIR/HOST is that host's keys_dir. `curve` is one process on it.
    The server's host has the loopback address for all, as all of them share it here."""

    def __init__(self, folder: Path, *names: str) -> None:
        self.folder = folder
        self.curves: list[Curve] = []
        self.ends: list[End] = []
        for name in names:
            self.keys.add(name, ["127.0.0.1"] if name == names[0] else [])

    @property
    def keys(self) -> KeyFolder:
        return KeyFolder(self.folder)

    def curve(self, name: str) -> Curve:
        security = SecurityConfig(keys_dir=str(self.folder / name))
        curve = open_curve(Config(security=security), structlog.get_logger("test"))
        assert curve is not None
        curve.start()
        self.curves.append(curve)
        return curve

    def end(self, curve: Curve | None, name: str, *, bind: str = "", connect: str = "") -> End:
        made = End(name.encode())
        made.open(curve, bind=bind, connect=connect)
        self.ends.append(made)
        return made

    def close(self) -> None:
        for end in self.ends:
            end.socket.close()
        for curve in self.curves:
            curve.close()


@dataclass
class End:
    identity: bytes
    inbox: asyncio.Queue[list[bytes]] = field(default_factory=asyncio.Queue)
    connected: asyncio.Event = field(default_factory=asyncio.Event)
    lost: asyncio.Event = field(default_factory=asyncio.Event)
    calls: int = 0
    socket: Socket = field(init=False)

    def open(self, curve: Curve | None, *, bind: str, connect: str) -> None:
        self.socket = Socket(
            CONTROL,
            bind=bind or None,
            connect=connect or None,
            identity=self.identity,
            on_frames=self._on_frames,
            on_connected=self.connected.set,
            on_disconnected=self.lost.set,
            curve=curve,
        )
        self.socket.start()

    def _on_frames(self, frames: list[bytes]) -> None:
        self.calls += 1
        self.inbox.put_nowait(frames)

    async def up(self) -> None:
        async with asyncio.timeout(SECONDS):
            await self.connected.wait()

    async def down(self) -> None:
        async with asyncio.timeout(SECONDS):
            await self.lost.wait()

    async def hear(self) -> list[bytes]:
        async with asyncio.timeout(SECONDS):
            return await self.inbox.get()


async def counted(curve: Curve, reason: str, at_least: int = 1) -> None:
    """Until this many were refused for this reason."""
    async with asyncio.timeout(SECONDS):
        while curve.gate.refusals.counts.get(reason, 0) < at_least:  # noqa: ASYNC110 - no event
            await asyncio.sleep(0.01)
