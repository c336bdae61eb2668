"""Clients that do next to nothing per byte: they note when bytes came and how many events."""

from __future__ import annotations

import asyncio
import json
import time
from dataclasses import dataclass, field
from multiprocessing.connection import Connection

import uvloop

EVENT = b"data: {"
END = b"0\r\n\r\n"


@dataclass(frozen=True)
class Load:
    """`streams` connections; with `requests`, they share so many whole answers, one after another
    on kept connections, resting about `pause_ms` between, the first of each spread over the first
    pause; without, each makes one stream."""

    port: int
    streams: int
    tokens: int
    requests: int = 0
    pause_ms: float = 0.0


@dataclass
class Seen:
    """`arrivals`: for each stream, the instant each of its events came. `seconds`: per request,
    from the first byte sent to the answer's end."""

    arrivals: list[list[float]] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)
    bad: int = 0
    first_bad: bytes = b""


class StreamClient(asyncio.Protocol):
    def __init__(self, request: bytes, done: asyncio.Future[None]) -> None:
        self._request = request
        self._done = done
        self._tail = b""
        self.arrivals: list[float] = []

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert hasattr(transport, "write")
        self._transport = transport
        transport.write(self._request)

    def data_received(self, data: bytes) -> None:
        now = time.monotonic()
        if not self._tail and not data.startswith(b"HTTP/1.1 200"):
            self._transport.close()
        self.arrivals += [now] * data.count(EVENT)
        self._tail = (self._tail + data)[-64:]
        if self._tail.endswith(END):  # with [DONE] before it, or after an error
            self._transport.close()

    def connection_lost(self, exc: Exception | None) -> None:
        if not self._done.done():
            self._done.set_result(None)


class WholeClient(asyncio.Protocol):
    """One request after another, the first `after` seconds from now; `left` is shared by all."""

    def __init__(
        self, load: Load, after: float, left: list[int], seen: Seen, done: asyncio.Future[None]
    ) -> None:
        self._request, self._left, self._seen, self._done = request(load), left, seen, done
        self._pause, self._after = load.pause_ms / 1000, after
        self._sent = 0.0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert hasattr(transport, "write")
        self._transport = transport
        asyncio.get_running_loop().call_later(self._after, self._next)

    def data_received(self, data: bytes) -> None:
        if data.startswith(b"HTTP/1.1") and not data.startswith(b"HTTP/1.1 200"):
            self._seen.bad += 1
            self._seen.first_bad = self._seen.first_bad or data[:600]
            self._next()
            return
        if b'"finish_reason"' not in data:
            return
        self._seen.seconds.append(time.monotonic() - self._sent)
        if self._pause:
            jitter = 0.5 + len(self._seen.seconds) % 11 / 10
            asyncio.get_running_loop().call_later(self._pause * jitter, self._next)
        else:
            self._next()

    def connection_lost(self, exc: Exception | None) -> None:
        if not self._done.done():
            self._done.set_result(None)

    def _next(self) -> None:
        if not self._left[0]:
            self._transport.close()
            return
        self._left[0] -= 1
        self._sent = time.monotonic()
        self._transport.write(self._request)


def request(load: Load) -> bytes:
    body = json.dumps(
        {
            "model": "baton-tiny",
            "prompt": "hello, world",
            "max_tokens": load.tokens,
            "stream": not load.requests,
            "ignore_eos": True,
        }
    ).encode()
    head = f"POST /v1/completions HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: {len(body)}\r\n"
    return f"{head}Content-Type: application/json\r\n\r\n".encode() + body


async def run(load: Load) -> Seen:
    loop = asyncio.get_running_loop()
    seen, left, ends, streams = Seen(), [load.requests], [], []
    data = request(load)
    for at in range(load.streams):
        done: asyncio.Future[None] = loop.create_future()
        ends.append(done)
        if load.requests:
            after = load.pause_ms / 1000 * at / load.streams
            whole = WholeClient(load, after, left, seen, done)
            await loop.create_connection(lambda whole=whole: whole, "127.0.0.1", load.port)  # type: ignore[misc]
        else:
            stream = StreamClient(data, done)
            streams.append(stream)
            await loop.create_connection(lambda stream=stream: stream, "127.0.0.1", load.port)  # type: ignore[misc]
    await asyncio.gather(*ends)
    seen.arrivals = [stream.arrivals for stream in streams]
    return seen


def main(pipe: Connection) -> None:
    """Serves loads from the pipe until it gets None."""
    pipe.send("ready")
    while (load := pipe.recv()) is not None:
        pipe.send(uvloop.run(run(load)))
