"""A peer that the test plays: one end of a socket, whose other end belongs to what is tested."""

from __future__ import annotations

import asyncio
from typing import Any, TypeVar

from common.messages import Message
from common.net.endpoints import CONTROL, Endpoint
from common.net.sockets import Curve, Socket
from common.net.wire import Decoder, encode

WAIT_SECONDS = 10.0
M = TypeVar("M", bound=Message)


class Peer:
    """Binds `address`, or connects to it with an `identity`. Messages wait in `inbox` as the socket
    delivered them; a bound peer sends to whom it heard last. `kinds`: the union of messages that
    may arrive. Every wait raises TimeoutError after `WAIT_SECONDS`."""

    def __init__(
        self,
        address: str,
        kinds: Any = None,
        endpoint: Endpoint = CONTROL,
        *,
        identity: str = "",
        curve: Curve | None = None,
    ) -> None:
        self.identity = identity.encode()
        self.sender = b""
        self.calls = 0
        self.inbox: asyncio.Queue[list[bytes]] = asyncio.Queue()
        self.connected, self.lost = asyncio.Event(), asyncio.Event()
        self.socket = Socket(
            endpoint,
            bind=None if identity else address,
            connect=address if identity else None,
            identity=self.identity,
            on_frames=self.on_frames,
            on_connected=self.on_connected if identity else None,
            on_disconnected=self.lost.set if identity else None,
            curve=curve,
        )
        self._decoder: Decoder[Any] = Decoder(kinds)
        self.socket.start()

    def send(self, message: Message, *more: bytes) -> None:
        self.send_frames(encode(message), *more)

    def send_frames(self, *frames: bytes) -> None:
        assert self.socket.send([*([] if self.identity else [self.sender]), *frames])

    async def up(self) -> None:
        async with asyncio.timeout(WAIT_SECONDS):
            await self.connected.wait()

    async def down(self) -> None:
        async with asyncio.timeout(WAIT_SECONDS):
            await self.lost.wait()

    async def hear(self) -> list[bytes]:
        """The next message as the socket delivered it."""
        async with asyncio.timeout(WAIT_SECONDS):
            return await self.inbox.get()

    async def next(self, *kinds: type[M]) -> M:
        """The next message of these kinds; others are skipped."""
        async with asyncio.timeout(WAIT_SECONDS):
            while True:
                message = self.decoded(await self.inbox.get())
                if isinstance(message, kinds):
                    return message

    def drained(self) -> list[Message]:
        """All that has arrived and was not read."""
        return [self.decoded(self.inbox.get_nowait()) for _ in range(self.inbox.qsize())]

    def decoded(self, frames: list[bytes]) -> Message:
        message: Message = self._decoder.decode(frames[0 if self.identity else 1])
        return message

    def close(self) -> None:
        self.socket.close()

    def on_connected(self) -> None:
        """Called each time that the connection is made."""
        self.connected.set()

    def on_frames(self, frames: list[bytes]) -> None:
        """Called with each message; a subclass that answers calls this first."""
        if not self.identity:
            self.sender = frames[0]
        self.calls += 1
        self.inbox.put_nowait(frames)
