"""The client's side of one streamed answer: bytes straight to the transport, never waited for.

A client that does not read is bounded by what its transport buffers, in bytes and in time, and
then cut.
"""

from __future__ import annotations

import asyncio

from common.config import GatewayConfig
from common.errors import BatonError


class ClientConnection:
    """A client that is sent events; an sse.Connection. `started` resolves with the first frame, or
    raises the refusal that came instead; `ended` resolves after the last."""

    def __init__(self, limits: GatewayConfig) -> None:
        loop = asyncio.get_running_loop()
        self.started: asyncio.Future[None] = loop.create_future()
        self.ended: asyncio.Future[None] = loop.create_future()
        self.cut_reason = ""
        self._now = loop.time
        self._bytes_max = limits.slow_client_bytes_max
        self._seconds_max = limits.slow_client_ms_max / 1000
        self._transport: asyncio.WriteTransport | None = None
        self._early: list[bytes] = []
        self._chunked = True
        self._stuck_since = 0.0

    def attach(self, transport: asyncio.WriteTransport, *, chunked: bool) -> None:
        """The headers are out; frames follow. `chunked` False: an HTTP/1.0 client reads to EOF."""
        self._transport, self._chunked = transport, chunked
        early, self._early = self._early, []
        if early:
            self.write(b"".join(early))

    def write(self, payload: bytes) -> None:
        transport = self._transport
        if transport is None:
            self._early.append(payload)
            if not self.started.done():
                self.started.set_result(None)
            return
        if transport.is_closing():
            return
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
        if not self.ended.done():
            self.ended.set_result(None)

    def _too_slow(self, waiting: int) -> bool:
        """Something was still unsent from earlier; since when, without a pause?"""
        now = self._now()
        if not self._stuck_since:
            self._stuck_since = now
        return waiting > self._bytes_max or now - self._stuck_since > self._seconds_max

    def _cut(self, transport: asyncio.WriteTransport, waiting: int) -> None:
        self.cut_reason = f"slow client, {waiting} bytes unsent"
        transport.abort()
