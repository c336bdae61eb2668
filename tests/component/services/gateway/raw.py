"""Bytes to a gateway's HTTP port and what comes back."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable

from tests.component.services.gateway.rig import Rig
from tests.rigs.peers import WAIT_SECONDS


class RawClient:
    """One TCP connection."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer

    @classmethod
    async def open(cls, rig: Rig) -> RawClient:
        return cls(*await asyncio.open_connection(*rig.gateway.http_address))

    def send(self, data: bytes) -> None:
        self.writer.write(data)

    async def status(self) -> int:
        """Of the next answer, whose head is read; 0 when the server closed instead."""
        async with asyncio.timeout(WAIT_SECONDS):
            try:
                head = await self.reader.readuntil(b"\r\n\r\n")
            except (asyncio.IncompleteReadError, ConnectionError):
                return 0
        return int(head.split(b" ", 2)[1])

    async def closed(self) -> bool:
        """Waits for the server to end the connection."""
        async with asyncio.timeout(WAIT_SECONDS):
            with contextlib.suppress(ConnectionError):
                await self.reader.read()
        return True

    def close(self) -> None:
        self.writer.close()


async def eventually(condition: Callable[[], bool]) -> None:
    """Without a request, which a full gateway would refuse."""
    async with asyncio.timeout(WAIT_SECONDS):
        while not condition():  # noqa: ASYNC110 - the gateway has no event for it
            await asyncio.sleep(0)


async def until(rig: Rig, condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(WAIT_SECONDS):
        while not condition():
            await rig.turn()
