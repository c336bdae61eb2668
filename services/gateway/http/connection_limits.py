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

A TLS handshake is not counted here because there is no connection yet. It may take as long as a
head.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import cast

from common.config import Config
from common.process.descriptors import kept_from_clients, soft_limit

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
    """Counts all connections of one server."""

    def __init__(self, config: Config) -> None:
        gateway, limit = config.gateway, soft_limit()
        kept = kept_from_clients(config, limit)
        self._max = gateway.connections_max
        self._max_per_ip = gateway.connections_per_ip_max
        #: The lowest descriptor that no client gets.
        self._descriptor_ceiling = limit - kept
        self._leaving: dict[asyncio.Transport, None] = {}
        self._leaving_max = kept // 2
        self.header_seconds = gateway.header_ms_max / 1000
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
        if self._max_per_ip and count >= self._max_per_ip:
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
    """`make_inner` makes the HTTP protocol of one connection."""

    def __init__(
        self, limits: ConnectionLimits, make_inner: Callable[[], asyncio.Protocol]
    ) -> None:
        self._limits = limits
        self._inner: asyncio.Protocol | None = make_inner()
        self._ip = ""
        self._transport: asyncio.Transport | None = None
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
        refusal = self._limits.enter(self._ip, transport.get_extra_info("socket").fileno())
        if refusal:
            self._inner = None
            self._refuse(transport, REFUSAL % (refusal, len(FULL), FULL))
            return
        self._start_clock()
        if self._inner is not None:
            self._inner.connection_made(transport)

    def data_received(self, data: bytes) -> None:
        if self._inner is None:
            return
        if self._clock is None and not self._answering:
            self._start_clock()
        self._inner.data_received(data)

    def eof_received(self) -> bool | None:
        return self._inner.eof_received() if self._inner is not None else None

    def pause_writing(self) -> None:
        if self._inner is not None:
            self._inner.pause_writing()

    def resume_writing(self) -> None:
        if self._inner is not None:
            self._inner.resume_writing()

    def connection_lost(self, exc: Exception | None) -> None:
        inner, self._inner = self._inner, None
        transport, self._transport = self._transport, None
        self._stop_clock()
        if inner is not None:
            self._limits.leave(self._ip)
            inner.connection_lost(exc)
        elif transport is not None:
            self._limits.left(transport)

    def _refuse(self, transport: asyncio.Transport, answer: bytes) -> None:
        transport.write(answer)
        if transport.can_write_eof():  # TLS cannot
            transport.write_eof()
        self._limits.stay(transport)
        self._clock = asyncio.get_running_loop().call_later(LEAVING_SECONDS, transport.abort)

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
