"""How many connections there may be, and how long one may stay without a complete request.

Theory of operation: a `LimitedConnection` is the protocol of each accepted connection and passes
everything on to the HTTP protocol behind it. It counts connections, in total and per address, and
answers those over a limit with a short refusal, as well as those whose descriptor is one that
clients do not get (`common/process/descriptors.py`). While no request is being answered, the first
byte (or the connection itself) starts the header timer; a request head that is not complete in time
ends the connection, however steadily its bytes come. The server stops the timer when the head is
complete (`handler_began`). The request body has a limit of its own there, and a connection that is
idle between requests has aiohttp's.

A refused connection stays open until its client has left, for a second at most. If it were closed
while bytes of the request are on their way, the kernel would reset it, and the client would see no
answer. When too many stay, the oldest is closed.

A connection counts from its first moment, so TLS begins only after that: its handshake has the time
of a head, and a refusal comes through it.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager, suppress
from typing import Any, cast

from common.process.descriptors import soft_limit

REFUSAL = (
    b"HTTP/1.1 %b\r\nServer: baton\r\nContent-Type: application/json\r\nContent-Length: %d\r\n"
    b"Retry-After: 1\r\nConnection: close\r\n\r\n%b"
)
FULL = (
    b'{"error":{"message":"too many connections","type":"overloaded_error","param":null,'
    b'"code":"queue_full"}}'
)


LEAVING_SECONDS = 1.0


class ConnectionLimits:
    """Counts all connections of one server. `max_per_ip`: 0 is no limit; clients on a Unix socket
    have no address. `kept`: the last descriptors, which no client gets."""

    def __init__(self, most: int, max_per_ip: int, header_seconds: float, kept: int) -> None:
        self._max = most
        self._max_per_ip = max_per_ip
        #: The lowest descriptor that no client gets.
        self._descriptor_ceiling = soft_limit() - kept
        self._leaving: dict[asyncio.Transport, None] = {}
        self._leaving_max = kept // 2
        self.header_seconds = header_seconds
        self._of_ip: dict[str, int] = {}
        #: Open now.
        self.connections = 0
        #: Refused because of a limit, since the start.
        self.refused = 0
        #: Ended because no complete head came in time, since the start.
        self.timed_out = 0

    @property
    def leaving(self) -> int:
        """Refused connections that are open."""
        return len(self._leaving)

    def enter(self, ip: str, descriptor: int) -> bytes:
        """Returns the status line of a refusal, or empty bytes. Each entry needs one `leave`."""
        if self.connections >= self._max or descriptor >= self._descriptor_ceiling:
            self.refused += 1
            return b"503 Service Unavailable"
        count = self._of_ip.get(ip, 0)
        if self._max_per_ip and ip and count >= self._max_per_ip:
            self.refused += 1
            return b"429 Too Many Requests"
        self.connections += 1
        self._of_ip[ip] = count + 1
        return b""

    def leave(self, ip: str) -> None:
        self.connections -= 1
        left = self._of_ip[ip] - 1
        if left:
            self._of_ip[ip] = left
        else:
            del self._of_ip[ip]

    def stay(self, refused: asyncio.Transport) -> None:
        """Lets a refused connection stay open until `left`."""
        if len(self._leaving) >= self._leaving_max:
            oldest = next(iter(self._leaving))
            self.left(oldest)
            oldest.abort()
        self._leaving[refused] = None

    def left(self, refused: asyncio.Transport) -> None:
        self._leaving.pop(refused, None)


class LimitedConnection(asyncio.Protocol):
    """`make_inner` makes the HTTP protocol of one connection. `tls`: it begins with a handshake."""

    def __init__(
        self,
        limits: ConnectionLimits,
        make_inner: Callable[[], asyncio.Protocol],
        tls: ssl.SSLContext | None = None,
    ) -> None:
        self._limits = limits
        self._inner: asyncio.Protocol | None = make_inner()
        self._tls = tls
        self._ip = ""
        #: As it was accepted; None before that and after its end.
        self._transport: asyncio.Transport | None = None
        #: The status line of a refusal; empty: there is none.
        self._refusal = b""
        #: The handshake is over, if there is one.
        self._begun = False
        self._clock: asyncio.TimerHandle | None = None
        self._answering = False

    def handler_began(self) -> None:
        """The head of a request is complete, and its handler runs."""
        self._answering = True
        self._stop_clock()

    def handler_ended(self) -> None:
        """The handler has returned."""
        self._answering = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        transport = cast(asyncio.Transport, transport)  # uvloop registers no subclass
        peer = transport.get_extra_info("peername")
        self._ip = str(peer[0]) if isinstance(peer, tuple) else ""
        self._transport = transport
        descriptor = transport.get_extra_info("socket").fileno()
        self._refusal = self._limits.enter(self._ip, descriptor)
        if self._refusal:
            self._limits.stay(transport)
            self._clock = asyncio.get_running_loop().call_later(LEAVING_SECONDS, transport.abort)
        else:
            self._start_clock()
        if self._tls is None:
            self._begin(transport)
        else:
            self._secure(transport, self._tls)

    def data_received(self, data: bytes) -> None:
        if self._inner is None or self._refusal:
            return
        if self._clock is None and not self._answering:
            self._start_clock()
        self._inner.data_received(data)

    def eof_received(self) -> bool | None:
        return self._inner.eof_received() if self._inner is not None and self._begun else None

    def pause_writing(self) -> None:
        if self._inner is not None and self._begun:
            self._inner.pause_writing()

    def resume_writing(self) -> None:
        if self._inner is not None and self._begun:
            self._inner.resume_writing()

    def connection_lost(self, exc: Exception | None) -> None:
        """Idempotent: a handshake that fails may tell of it, too."""
        inner, self._inner = self._inner, None
        transport, self._transport = self._transport, None
        self._stop_clock()
        if transport is None:
            return
        if self._refusal:
            self._limits.left(transport)
            return
        self._limits.leave(self._ip)
        if inner is not None and self._begun:
            inner.connection_lost(exc)

    def _secure(self, transport: asyncio.Transport, tls: ssl.SSLContext) -> None:
        """The first step is made here and not by a task: what the loop reads next is for TLS."""
        shaking = asyncio.get_running_loop().start_tls(transport, self, tls, server_side=True)
        waits: asyncio.Future[None] = shaking.send(None)
        waits.add_done_callback(lambda _: self._secured(transport, shaking))

    def _secured(self, accepted: asyncio.Transport, shaking: Coroutine[Any, Any, Any]) -> None:
        """The handshake has ended; what came with its end is given out after this. Where it failed,
        uvloop has closed the connection. Where that was lost meanwhile, it tells of a good end."""
        secured: asyncio.Transport | None = None
        with suppress(OSError, asyncio.CancelledError):
            try:
                shaking.send(None)
            except StopIteration as done:
                secured = done.value
        if secured is None or accepted.is_closing():
            self.connection_lost(None)
        elif self._transport is not None:
            if not self._refusal:
                self._stop_clock()
                self._start_clock()
            self._begin(secured)

    def _begin(self, transport: asyncio.Transport) -> None:
        self._begun = True
        if self._refusal:
            transport.write(REFUSAL % (self._refusal, len(FULL), FULL))
            if transport.can_write_eof():  # TLS cannot
                transport.write_eof()
            return
        if self._inner is not None:
            self._inner.connection_made(transport)

    def _start_clock(self) -> None:
        loop = asyncio.get_running_loop()
        self._clock = loop.call_later(self._limits.header_seconds, self._end_late)

    def _stop_clock(self) -> None:
        if self._clock is not None:
            self._clock.cancel()
            self._clock = None

    def _end_late(self) -> None:
        self._limits.timed_out += 1
        if self._transport is not None:
            self._transport.abort()


@contextmanager
def answering(transport: asyncio.BaseTransport | None) -> Iterator[None]:
    """Around the handler of a request: the connection waits for no head. `transport`: None when it
    is gone already."""
    protocol = transport.get_protocol() if transport is not None else None
    connection = protocol if isinstance(protocol, LimitedConnection) else None
    if connection is not None:
        connection.handler_began()
    try:
        yield
    finally:
        if connection is not None:
            connection.handler_ended()
