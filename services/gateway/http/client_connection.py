"""The client's side of one streamed answer: bytes go straight to the transport and never wait.

Theory of operation: a token is a few hundred bytes, and giving them to the kernel costs more than
making them. So frames are kept until the messages at hand have been handled, and then each
connection gets one write: one per engine step when steps come one by one, one for several steps
under load. Writing one connection after the other is also cheaper than writing between other work,
because the receivers are awake and the caches warm.

A client that does not read is cut when its transport buffers too much, or when it takes nothing for
too long. That of a resumable stream is not: the stream's own buffer has a bound.
"""

from __future__ import annotations

import asyncio
import socket
import struct
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from common.config import GatewayConfig
from common.errors import BatonError, Code

TOKENS_MAX = 4_096
#: At what a client takes, in the time in which it must take something.
LOOKS = 10


def reset(transport: asyncio.WriteTransport) -> None:
    """Ends a connection so that its client sees an error and not an end, and the kernel drops
    unsent bytes."""
    sock = transport.get_extra_info("socket")
    if sock is not None:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    transport.abort()


@asynccontextmanager
async def taken_in_time(
    transport: asyncio.WriteTransport, limits: GatewayConfig
) -> AsyncIterator[None]:
    """Around writes that wait for their client. One that takes nothing for `slow_client_ms_max` is
    cut. Raises ConnectionResetError then."""
    loop, seconds = asyncio.get_running_loop(), limits.slow_client_ms_max / 1000
    timer: asyncio.TimerHandle

    def look(before: int) -> None:
        nonlocal timer
        unsent = transport.get_write_buffer_size()
        if unsent < before:
            limit.reschedule(loop.time() + seconds)
        timer = loop.call_later(seconds / LOOKS, look, unsent)

    timer = loop.call_later(seconds / LOOKS, look, 0)
    try:
        async with asyncio.timeout(seconds) as limit:
            yield
    except TimeoutError as error:
        reset(transport)
        raise ConnectionResetError("the client takes nothing") from error
    finally:
        timer.cancel()


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
    """A client that gets events; a `Connection`. `patient`: it is not cut because it is slow."""

    __slots__ = (
        "_batcher", "_bytes_max", "_chunked", "_now", "_patient", "_seconds_max", "_stuck_since",
        "_stuck_with", "_transport", "_waiting", "cut_reason", "ended", "started",
    )  # fmt: skip

    def __init__(
        self, limits: GatewayConfig, batcher: WriteBatcher, *, patient: bool = False
    ) -> None:
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
        self._patient = patient
        #: When it last took something of what waits, and how many bytes it left; 0: nothing waits.
        self._stuck_since, self._stuck_with = 0.0, 0

    @property
    def unsent(self) -> int:
        """Bytes that the client's side has not taken."""
        transport = self._transport
        buffered = transport.get_write_buffer_size() if transport is not None else 0
        return buffered + sum(map(len, self._waiting))

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
            if not self._patient and self._too_slow(waiting, len(payload)):
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

    def _too_slow(self, waiting: int, more: int) -> bool:
        """Bytes from earlier are still unsent: too many, or none was taken for too long."""
        now = self._now()
        if not self._stuck_since or waiting < self._stuck_with:
            self._stuck_since = now
        self._stuck_with = waiting + more
        return self._stuck_with > self._bytes_max or now - self._stuck_since > self._seconds_max

    def _cut(self, transport: asyncio.WriteTransport, waiting: int) -> None:
        self.cut_reason = f"slow client, {waiting} bytes unsent"
        reset(transport)
