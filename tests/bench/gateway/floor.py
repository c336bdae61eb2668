"""The least that any Python gateway could do with the same wire: one fixed chunk written per token.

No HTTP parser, no checks, no journal, no text. What it costs is mostly the kernel's send; the
gateway's figure is read as a ratio to it.
"""

from __future__ import annotations

import asyncio
from multiprocessing.connection import Connection

import uvloop

from common.messages import (
    WIRE_VERSION,
    DecodeToGateway,
    Hello,
    RequestBody,
    Role,
    Sampling,
    Submit,
    Tokens,
    Welcome,
)
from common.net.endpoints import CONTROL, STREAM
from common.net.sockets import Socket
from common.net.wire import Decoder, encode
from tests.rigs.messages import hello

HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
EVENT = (
    b'data: {"id":"cmpl-0123456789abcdef0123456789abcdef","object":"text_completion",'
    b'"created":1763740000,"model":"baton-tiny","choices":[{"index":0,"text":"a",'
    b'"logprobs":null,"finish_reason":null}]}\n\n'
)
CHUNK = b"%x\r\n%b\r\n" % (len(EVENT), EVENT)
DONE = b"e\r\ndata: [DONE]\n\n\r\n0\r\n\r\n"
WHOLE_BODY = b'{"choices":[{"index":0,"text":"a","finish_reason":"length"}]}'
WHOLE = b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%b" % (len(WHOLE_BODY), WHOLE_BODY)


class Floor:
    def __init__(self, control: str, stream: str) -> None:
        self._transports: dict[str, tuple[asyncio.WriteTransport, bool]] = {}
        self.connected = asyncio.Event()
        self._decoder: Decoder[DecodeToGateway] = Decoder(DecodeToGateway)
        body = RequestBody(prompt_ids=bytes(48), sampling=Sampling(max_tokens=128))
        self._body = encode(body)
        self._stream = Socket(STREAM, bind=stream, on_frames=self._on_tokens)
        self._control = Socket(
            CONTROL,
            connect=control,
            identity=b"floor|1",
            on_frames=lambda _: None,
            on_connected=self._say_hello,
        )
        self._stream.start()
        self._control.start()

    def _say_hello(self) -> None:
        greeting = hello(Role.GATEWAY, "floor", stream_endpoint=self._stream.address)
        self._control.send([encode(greeting)])
        self.connected.set()

    def open(self, transport: asyncio.WriteTransport, *, streamed: bool) -> None:
        request_id = f"r{len(self._transports):031d}"
        self._transports[request_id] = transport, streamed
        submit = Submit(request_id=request_id, attempt=1, prompt_tokens=12, max_tokens=128)
        self._control.send([encode(submit), self._body])
        if streamed:
            transport.write(HEAD)

    def _on_tokens(self, frames: list[bytes]) -> None:
        message = self._decoder.decode(frames[1])
        if isinstance(message, Hello):
            welcome = Welcome(wire_version=WIRE_VERSION, name="floor", incarnation="1")
            self._stream.send([frames[0], encode(welcome)])
        if not isinstance(message, Tokens):
            return
        for delta in message.deltas:
            transport, streamed = self._transports[delta.request_id]
            if not streamed:
                transport.write(WHOLE)
            else:
                transport.write(CHUNK + DONE if delta.finish_reason else CHUNK)


class FloorClient(asyncio.Protocol):
    def __init__(self, floor: Floor) -> None:
        self._floor = floor

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        assert hasattr(self._transport, "write")
        self._floor.open(self._transport, streamed=b'"stream": true' in data)  # type: ignore[arg-type]


def main(pipe: Connection, control: str, stream: str) -> None:
    uvloop.run(_serve(pipe, control, stream))


async def _serve(pipe: Connection, control: str, stream: str) -> None:
    floor = Floor(control, stream)
    loop = asyncio.get_running_loop()
    server = await loop.create_server(
        lambda: FloorClient(floor), "127.0.0.1", 0, backlog=2048, reuse_port=True
    )
    await floor.connected.wait()
    pipe.send(server.sockets[0].getsockname()[1])
    await loop.run_in_executor(None, pipe.recv)
    server.close()
