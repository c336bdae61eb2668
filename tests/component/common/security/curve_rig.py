"""Hosts with keys, and sockets of theirs over TCP on loopback."""

from __future__ import annotations

import asyncio
from pathlib import Path

import structlog

from common.config import Config, SecurityConfig
from common.net.sockets import Curve
from common.security.open import open_curve
from services.keygen.folder import KeyFolder
from tests.rigs.peers import WAIT_SECONDS, Peer

ANY_PORT = "tcp://127.0.0.1:0"


class Hosts:
    """A key folder, used in place: DIR/HOST is that host's keys_dir. `curve` is one process on it.
    The server's host has the loopback address for all, as all of them share it here."""

    def __init__(self, folder: Path, *names: str) -> None:
        self.folder = folder
        self.curves: list[Curve] = []
        self.ends: list[Peer] = []
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

    def end(self, curve: Curve | None, name: str, *, bind: str = "", connect: str = "") -> Peer:
        made = Peer(bind or connect, identity=name if connect else "", curve=curve)
        self.ends.append(made)
        return made

    def close(self) -> None:
        for end in self.ends:
            end.close()
        for curve in self.curves:
            curve.close()


async def counted(curve: Curve, reason: str, at_least: int = 1) -> None:
    """Until this many were refused for this reason."""
    async with asyncio.timeout(WAIT_SECONDS):
        while curve.gate.refusals.counts.get(reason, 0) < at_least:  # noqa: ASYNC110 - no event
            await asyncio.sleep(0.01)
