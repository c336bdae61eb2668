"""The client's side of one streamed answer: bytes straight to the transport, never waited for.

Theory of operation: a token is a few hundred bytes, and giving them to the kernel costs more than
making them. So frames are kept until the messages at hand are worked through, then each connection
gets one write: with a step at a time that is one write per step, under load one for several steps.
Writing one connection after the other is also cheaper than writing between other work: the
receivers are awake and our caches warm.

A client that does not read is bounded by what its transport buffers, in bytes and in time, and
then cut.
"""

from __future__ import annotations

import asyncio
import socket
import struct

from common.config import GatewayConfig
from common.errors import BatonError, Code

TOKENS_MAX = 4_096


def reset(transport: asyncio.WriteTransport) -> None:
    """Ends a connection so that its client sees an error, not an end, and the kernel does not keep
    what is unsent."""
    sock = transport.get_extra_info("socket")
    if sock is not None:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    transport.abort()


class Outbox:
    """The connections with frames to write; they go out at the loop's next turn, or at once after
    `TOKENS_MAX`, so that a burst of messages delays nobody for more than some milliseconds."""

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

    def worked(self, tokens: int) -> None:
        """A message with so many was worked through."""
        self._tokens += tokens
        if self._tokens >= TOKENS_MAX:
            self._flush()

    def _flush(self) -> None:
        dirty, self._dirty = self._dirty, []
        self._tokens = 0
        for connection in dirty:
            connection.flush()


class ClientConnection:
    """A client that is sent events; an sse.Connection. `started` resolves with the first frame, or
    raises the refusal that came instead; `ended` resolves after the last."""

    __slots__ = (
        "_bytes_max", "_chunked", "_now", "_outbox", "_seconds_max", "_stuck_since", "_transport",
        "_waiting", "cut_reason", "ended", "started",
    )  # fmt: skip

    def __init__(self, limits: GatewayConfig, outbox: Outbox) -> None:
        loop = asyncio.get_running_loop()
        self.started: asyncio.Future[None] = loop.create_future()
        self.ended: asyncio.Future[None] = loop.create_future()
        self.cut_reason = ""
        self._outbox = outbox
        self._now = loop.time
        self._bytes_max = limits.slow_client_bytes_max
        self._seconds_max = limits.slow_client_ms_max / 1000
        self._transport: asyncio.WriteTransport | None = None
        self._waiting: list[bytes] = []
        self._chunked = True
        self._stuck_since = 0.0

    def attach(self, transport: asyncio.WriteTransport, *, chunked: bool) -> None:
        """The headers are out; frames follow. `chunked` False: an HTTP/1.0 client reads to EOF."""
        self._transport, self._chunked = transport, chunked
        if self._waiting:
            self.flush()

    def write(self, payload: bytes) -> None:
        waiting = self._waiting
        if not waiting:
            if self._transport is not None:
                self._outbox.add(self)
            elif not self.started.done():
                self.started.set_result(None)
        waiting.append(payload)

    def flush(self) -> None:
        """What waits goes to the transport, as one chunk; kept while the headers are not out."""
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
        """Its client sees an error, not an end."""
        self.cut_reason = reason
        if self._transport is not None:
            reset(self._transport)
        else:
            self.refuse(BatonError(Code.STREAM_CONFLICT, reason))

    def _too_slow(self, waiting: int) -> bool:
        """Something was still unsent from earlier; since when, without a pause?"""
        now = self._now()
        if not self._stuck_since:
            self._stuck_since = now
        return waiting > self._bytes_max or now - self._stuck_since > self._seconds_max

    def _cut(self, transport: asyncio.WriteTransport, waiting: int) -> None:
        self.cut_reason = f"slow client, {waiting} bytes unsent"
        reset(transport)
