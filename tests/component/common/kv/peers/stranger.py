"""Somebody who reaches a KV listener and speaks as he likes: over TCP, or over UCX link by link."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Sequence

import numpy as np

from common.kv.messages import KvHello
from common.kv.peers.authentication import FrameSeals, Greeting, agree
from common.kv.peers.channel import CONTROL_FRAME_BYTES, ControlFrame, pack_frame
from common.kv.transport.ucx import UcxLink, UcxWorker
from common.messages import WIRE_VERSION
from common.net.wire import encode

SECONDS = 10.0
HELLO = KvHello(wire_version=WIRE_VERSION, name="d9", incarnation="inc-d9", fingerprint="f")


class Stranger:
    """A process of its own, as far as the listener can tell."""

    def __init__(self, address: str) -> None:
        host, _, port = address.rpartition(":")
        self.address = host, int(port)
        self.ucx = UcxWorker("tcp,self", lambda _: None)
        self.ucx.start()
        self._sockets: list[socket.socket] = []

    def say(self, data: bytes, host: str = "") -> socket.socket:
        """Connects over TCP, and sends this."""
        connection = socket.create_connection((host or self.address[0], self.address[1]), SECONDS)
        self._sockets.append(connection)
        connection.sendall(data)
        return connection

    def connect(self) -> StrangeLink:
        return StrangeLink(self.ucx.connect(*self.address))

    async def open(self, greeting: bytes) -> StrangeLink:
        """A link on which tags and greetings were exchanged."""
        link = self.connect()
        opened: asyncio.Future[str | None] = asyncio.get_running_loop().create_future()
        link.link.open(opened.set_result, greeting)
        async with asyncio.timeout(SECONDS):
            assert await opened is None
        return link

    async def introduce(self, secrets: Sequence[bytes] = ()) -> tuple[StrangeLink, FrameSeals]:
        """A link on which this secret was agreed upon; what is said next is the hello's place."""
        greeting = Greeting.of(secrets)
        opened = await self.open(greeting.pack())
        link = opened.link
        remote = Greeting.unpack(link.remote_greeting)
        return opened, agree(secrets, greeting, link.receive_tag, remote, link.send_tag)

    def close(self) -> None:
        for connection in self._sockets:
            connection.close()
        self.ucx.close()


class StrangeLink:
    """One link of a stranger's."""

    def __init__(self, link: UcxLink) -> None:
        self.link = link
        self._lost = asyncio.Event()
        link.on_lost = self._lost.set

    async def lost(self) -> None:
        async with asyncio.timeout(SECONDS):
            await self._lost.wait()

    @property
    def alive(self) -> bool:
        return not self._lost.is_set()

    def send(self, frame: ControlFrame) -> None:
        self.link.send(frame, self.link.send_tag, lambda _: None)

    def say_hello(self, seals: FrameSeals) -> None:
        self.send(pack_frame(encode(HELLO), seals))

    async def receive(self) -> ControlFrame:
        """The next frame of the other side."""
        frame = np.zeros(CONTROL_FRAME_BYTES, np.uint8)
        done: asyncio.Future[str | None] = asyncio.get_running_loop().create_future()
        self.link.receive(frame, self.link.receive_tag, done.set_result)
        async with asyncio.timeout(SECONDS):
            assert await done is None
        return frame
