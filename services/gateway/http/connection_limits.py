"""How many connections there may be, and how long one may stay without a complete request.

Theory of operation: a `LimitedConnection` is the protocol of each accepted connection and passes
everything on to the HTTP protocol behind it. It counts connections, in total and per address, and
answers those over a limit with a short refusal. While no request is being answered, the first byte
(or the connection itself) starts the header timer; a request head that is not complete in time ends
the connection, however steadily its bytes come. The server stops the timer when the head is
complete (`handler_began`). The request body has a limit of its own there, and a connection that is
idle between requests has aiohttp's.

A TLS handshake is not counted here because there is no connection yet. It may take as long as a
head.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import cast

from common.config import GatewayConfig

REFUSAL = (
    b"HTTP/1.1 %b\r\nServer: baton\r\nContent-Type: application/json\r\nContent-Length: %d\r\n"
    b"Retry-After: 1\r\nConnection: close\r\n\r\n%b"
)
FULL = (
    b'{"error":{"message":"too many connections","type":"overloaded_error","param":null,'
    b'"code":"queue_full"}}'
)


class ConnectionLimits:
    """Counts all connections of one server."""

    def __init__(self, config: GatewayConfig) -> None:
        self._max = config.connections_max
        self._max_per_ip = config.connections_per_ip_max
        self.header_seconds = config.header_ms_max / 1000
        self._of_ip: dict[str, int] = {}
        #: Open now.
        self.connections = 0
        #: Refused because of a limit, since the start.
        self.refused = 0
        #: Ended because no complete head came in time, since the start.
        self.timed_out = 0

    def enter(self, ip: str) -> bytes:
        """Returns the status line of a refusal, or empty bytes. Each entry needs one `leave`."""
        if self.connections >= self._max:
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
        refusal = self._limits.enter(self._ip)
        if refusal:
            self._inner = None
            transport.write(REFUSAL % (refusal, len(FULL), FULL))
            transport.close()
            return
        self._transport = transport
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
        self._stop_clock()
        self._transport = None
        if inner is not None:
            self._limits.leave(self._ip)
            inner.connection_lost(exc)

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
