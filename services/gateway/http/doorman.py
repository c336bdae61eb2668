"""Who may hold a connection, and for how long without saying what it wants.

Theory of operation: a `Doorman` stands in front of each connection's HTTP protocol and passes
everything on. It counts connections, in all and per address, and turns away those over a limit with
a short answer. While no request is being answered, the first byte (or the connection itself) starts
the header clock: a head that is not complete in time ends the connection, whatever its pace. The
server stops the clock when it has a whole head (`begin`); the body has its own limit there, and a
connection idle between requests has aiohttp's.

A TLS handshake is not counted here, since there is no connection yet; it has the header's time.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import cast

from common.config import GatewayConfig

TURNED_AWAY = (
    b"HTTP/1.1 %b\r\nServer: baton\r\nContent-Type: application/json\r\nContent-Length: %d\r\n"
    b"Retry-After: 1\r\nConnection: close\r\n\r\n%b"
)
FULL = (
    b'{"error":{"message":"too many connections","type":"overloaded_error","param":null,'
    b'"code":"queue_full"}}'
)


class FrontDesk:
    """All connections of one server."""

    def __init__(self, config: GatewayConfig) -> None:
        self._max = config.connections_max
        self._max_per_ip = config.connections_per_ip_max
        self.header_seconds = config.header_ms_max / 1000
        self._of_ip: dict[str, int] = {}
        self.connections = 0
        self.turned_away = 0
        self.too_late = 0

    def enter(self, ip: str) -> bytes:
        """Empty, or the status of the refusal. Each entry is matched by one `leave`."""
        if self.connections >= self._max:
            self.turned_away += 1
            return b"503 Service Unavailable"
        count = self._of_ip.get(ip, 0)
        if self._max_per_ip and count >= self._max_per_ip:
            self.turned_away += 1
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


class Doorman(asyncio.Protocol):
    """`make_inner` makes the HTTP protocol of one connection."""

    def __init__(self, desk: FrontDesk, make_inner: Callable[[], asyncio.Protocol]) -> None:
        self._desk = desk
        self._inner: asyncio.Protocol | None = make_inner()
        self._ip = ""
        self._transport: asyncio.Transport | None = None
        self._clock: asyncio.TimerHandle | None = None
        self._answering = False

    def begin(self) -> None:
        """A request's head is complete; its handler runs."""
        self._answering = True
        self._stop_clock()

    def end(self) -> None:
        """That handler has returned."""
        self._answering = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        transport = cast(asyncio.Transport, transport)  # uvloop registers no subclass
        peer = transport.get_extra_info("peername")
        self._ip = str(peer[0]) if isinstance(peer, tuple) else ""
        refusal = self._desk.enter(self._ip)
        if refusal:
            self._inner = None
            transport.write(TURNED_AWAY % (refusal, len(FULL), FULL))
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
            self._desk.leave(self._ip)
            inner.connection_lost(exc)

    def _start_clock(self) -> None:
        loop = asyncio.get_running_loop()
        self._clock = loop.call_later(self._desk.header_seconds, self._end_late)

    def _stop_clock(self) -> None:
        if self._clock is not None:
            self._clock.cancel()
            self._clock = None

    def _end_late(self) -> None:
        self._desk.too_late += 1
        if self._transport is not None:
            self._transport.abort()
