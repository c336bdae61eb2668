"""The client's side of one streamed answer: bytes go straight to the transport and never wait.

Theory of operation: a token is a few hundred bytes, and giving them to the kernel costs more than
making them. So frames are kept until the messages at hand have been handled, and then each
connection gets one write: one per engine step when steps come one by one, one for several steps
under load. Writing one connection after the other is also cheaper than writing between other work,
because the receivers are awake and the caches warm.

A client that does not read is cut when its transport buffers too much, in bytes or for too long.
"""

from __future__ import annotations

import asyncio
import socket
import struct

from common.config import GatewayConfig
from common.errors import BatonError, Code

TOKENS_MAX = 4_096


def reset(transport: asyncio.WriteTransport) -> None:
    """Ends a connection so that its client sees an error and not an end, and the kernel drops
    unsent bytes."""
    sock = transport.get_extra_info("socket")
    if sock is not None:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    transport.abort()


class WriteBatcher:
    """The connections with frames to write. They are written at the loop's next turn, or at once
    after `TOKENS_MAX`, so that a burst of messages delays a client by a few milliseconds at
    most."""

    __slots__ = ("_dirty", "_loop", "_tokens")

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._dirty: list[ClientConnection] = []
        self._tokens = 0

    def add(self, connection: ClientConnection) -> None:
        """`connection` has its first waiting frame."""
        if not self._dirty:
            self._loop.call_soon(self._flush)
        self._dirty.append(connection)

    def processed(self, tokens: int) -> None:
        """A message with so many tokens has been handled."""
        self._tokens += tokens
        if self._tokens >= TOKENS_MAX:
            self._flush()

    def _flush(self) -> None:
        dirty, self._dirty = self._dirty, []
        self._tokens = 0
        for connection in dirty:
            connection.flush()


class ClientConnection:
    """A client that gets events; a `Connection`."""

    __slots__ = (
        "_batcher", "_bytes_max", "_chunked", "_now", "_seconds_max", "_stuck_since", "_transport",
        "_waiting", "cut_reason", "ended", "started",
    )  # fmt: skip

    def __init__(self, limits: GatewayConfig, batcher: WriteBatcher) -> None:
        loop = asyncio.get_running_loop()
        #: Resolves with the first frame, or raises the refusal that came instead.
        self.started: asyncio.Future[None] = loop.create_future()
        #: Resolves after the last frame.
        self.ended: asyncio.Future[None] = loop.create_future()
        #: Why the gateway cut the connection; empty if it did not.
        self.cut_reason = ""
        self._batcher = batcher
        self._now = loop.time
        self._bytes_max = limits.slow_client_bytes_max
        self._seconds_max = limits.slow_client_ms_max / 1000
        self._transport: asyncio.WriteTransport | None = None
        self._waiting: list[bytes] = []
        self._chunked = True
        self._stuck_since = 0.0

    def attach(self, transport: asyncio.WriteTransport, *, chunked: bool) -> None:
        """The headers are written; frames follow. Without `chunked`, for HTTP/1.0, the body ends
        with the connection."""
        self._transport, self._chunked = transport, chunked
        if self._waiting:
            self.flush()

    def write(self, payload: bytes) -> None:
        waiting = self._waiting
        if not waiting:
            if self._transport is not None:
                self._batcher.add(self)
            elif not self.started.done():
                self.started.set_result(None)
        waiting.append(payload)

    def flush(self) -> None:
        """Writes the waiting frames as one chunk; keeps them while the headers are not written."""
        transport = self._transport
        if transport is None or not self._waiting:
            return
        frames, self._waiting = self._waiting, []
        if transport.is_closing():
            return
        payload = frames[0] if len(frames) == 1 else b"".join(frames)
        waiting = transport.get_write_buffer_size()
        if waiting:
            if self._too_slow(waiting + len(payload)):
                self._cut(transport, waiting)
                return
        else:
            self._stuck_since = 0.0
        transport.write(b"%x\r\n%b\r\n" % (len(payload), payload) if self._chunked else payload)

    def refuse(self, error: BatonError) -> None:
        if not self.started.done():
            self.started.set_exception(error)

    def end(self) -> None:
        """Nothing is written after this."""
        self.flush()
        if not self.ended.done():
            self.ended.set_result(None)

    def cut(self, reason: str) -> None:
        """Ends the connection so that its client sees an error and not an end."""
        self.cut_reason = reason
        if self._transport is not None:
            reset(self._transport)
        else:
            self.refuse(BatonError(Code.STREAM_CONFLICT, reason))

    def _too_slow(self, waiting: int) -> bool:
        """Bytes from earlier are still unsent: too many, or for too long without a pause."""
        now = self._now()
        if not self._stuck_since:
            self._stuck_since = now
        return waiting > self._bytes_max or now - self._stuck_since > self._seconds_max

    def _cut(self, transport: asyncio.WriteTransport, waiting: int) -> None:
        self.cut_reason = f"slow client, {waiting} bytes unsent"
        reset(transport)
