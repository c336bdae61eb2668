"""A decode worker for a real router that has its one token at once: what is left of a TTFT is the
gateway's, the router's and the wire's."""

from __future__ import annotations

import asyncio
from multiprocessing.connection import Connection

import uvloop

from common.messages import (
    Beat,
    Decode,
    Delta,
    Ended,
    Hello,
    Load,
    Message,
    Role,
    RouterToWorker,
    Tokens,
)
from common.net.endpoints import CONTROL, STREAM
from common.net.sockets import Socket
from common.net.wire import Decoder, encode
from common.process.lifecycle import Tasks
from tests.rigs.messages import capacity, worker_hello

BEAT_SECONDS = 0.5
CAPACITY = capacity(
    block_tokens=128, blocks=65_536, block_bytes=65_536, max_model_len=8_192, seqs=512
)


class Worker:
    def __init__(self, control: str) -> None:
        self._decoder: Decoder[RouterToWorker] = Decoder(RouterToWorker)
        self._gateways: dict[str, Socket] = {}
        self._control = Socket(
            CONTROL,
            connect=control,
            identity=b"d0|1",
            on_frames=self._on_control,
            on_connected=lambda: self._tell(self._hello()),
        )
        self._control.start()

    async def beat(self) -> None:
        while True:
            self._tell(Beat(load=Load()))
            await asyncio.sleep(BEAT_SECONDS)

    def _tell(self, message: Message) -> None:
        self._control.send([encode(message)])

    def _hello(self) -> Hello:
        return worker_hello(
            Role.DECODE, "d0", model="baton-tiny", kv_address="127.0.0.1:1", capacity=CAPACITY
        )

    def _on_control(self, frames: list[bytes]) -> None:
        message = self._decoder.decode(frames[0])
        if not isinstance(message, Decode):
            return
        request, attempt = message.request_id, message.attempt
        tokens = encode(Tokens(deltas=[Delta(request, attempt, 0, [97], "length")]))
        known = self._gateways.get(message.stream_endpoint)
        if known is not None:
            known.send([tokens])
        else:
            self._connect(message.stream_endpoint, tokens)
        self._tell(
            Ended(request_id=request, attempt=attempt, finish_reason="length", completion_tokens=1)
        )

    def _connect(self, endpoint: str, first: bytes) -> None:
        def greet() -> None:
            for frame in (encode(self._hello()), first):
                socket.send([frame])

        socket = Socket(
            STREAM,
            connect=endpoint,
            identity=b"d0|1",
            on_frames=lambda _: None,
            on_connected=greet,
        )
        self._gateways[endpoint] = socket
        socket.start()


def main(pipe: Connection, control: str) -> None:
    """Until the pipe says None."""
    uvloop.run(_serve(pipe, control))


async def _serve(pipe: Connection, control: str) -> None:
    worker = Worker(control)
    pipe.send("ready")
    stop = asyncio.get_running_loop().run_in_executor(None, pipe.recv)
    tasks = Tasks()
    tasks.start("beat", worker.beat())
    await stop
    await tasks.cancel_all()
