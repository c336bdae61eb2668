"""A router and a decode worker in one process, on the real wire: places every request at once, and
makes one token for each stream per step, all of a gateway's in one message, as a real D does.

It models no engine: it exists so that the gateway is the only thing that costs.
"""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass, field
from multiprocessing.connection import Connection

import uvloop

from common.messages import (
    WIRE_VERSION,
    Delta,
    Fleet,
    Hello,
    Placed,
    Role,
    Submit,
    Tokens,
    ToRouter,
    Welcome,
)
from common.net.endpoints import CONTROL, STREAM
from common.net.sockets import Sent, Socket
from common.net.wire import Decoder, encode

TOKEN = ord("a")
FULL_WAIT_SECONDS = 0.001


@dataclass(frozen=True)
class Plan:
    """`streams` begin together, `tokens` each, a step every `interval_ms` (0 = at once). `streams`
    0: each request is answered by itself with its first and last token, until told otherwise."""

    streams: int
    tokens: int
    interval_ms: float


@dataclass
class Side:
    """One gateway: its stream connection and its live requests, in order. A request that waits
    long for its first token is submitted again under the same id."""

    socket: Socket
    #: The gateway has welcomed the worker.
    welcomed: asyncio.Event = field(default_factory=asyncio.Event)
    ids: dict[str, None] = field(default_factory=dict)


class Pump:
    def __init__(self, control: str) -> None:
        self._decoder: Decoder[ToRouter] = Decoder(ToRouter)
        self._sides: dict[bytes, Side] = {}
        self._submitted = asyncio.Event()
        self.plan = Plan(0, 1, 0)
        self._control = Socket(CONTROL, bind=control, on_frames=self._on_control)
        self._control.start()

    def close(self) -> None:
        for side in self._sides.values():
            side.socket.close()
        self._control.close()

    async def run(self, plan: Plan) -> list[float]:
        """The instant of each step, once every stream of the plan has been submitted."""
        while sum(len(side.ids) for side in self._sides.values()) < plan.streams:
            self._submitted.clear()
            await self._submitted.wait()
        for side in self._sides.values():
            await side.welcomed.wait()
        start, sent = time.monotonic(), []
        for step in range(plan.tokens):
            await asyncio.sleep(max(0.0, start + step * plan.interval_ms / 1000 - time.monotonic()))
            end = "length" if step == plan.tokens - 1 else ""
            sent.append(time.monotonic())
            for side in self._sides.values():
                deltas = [Delta(each, 1, step, [TOKEN], end) for each in side.ids]
                frame = encode(Tokens(deltas=deltas))
                while side.socket.send([frame]) is Sent.FULL:  # noqa: ASYNC110 - no event says so
                    await asyncio.sleep(FULL_WAIT_SECONDS)
        for side in self._sides.values():
            side.ids.clear()
        return sent

    def _on_control(self, frames: list[bytes]) -> None:
        gateway, message = frames[0], self._decoder.decode(frames[1])
        if isinstance(message, Hello):
            self._greet(gateway, message)
        elif isinstance(message, Submit):
            request = message.request_id
            placed = Placed(request_id=request, attempt=1, decode="d0", decode_incarnation="1")
            self._control.send([gateway, encode(placed)])
            if self.plan.streams:
                self._sides[gateway].ids[request] = None
                self._submitted.set()
            else:
                last = Tokens(deltas=[Delta(request, 1, 0, [TOKEN], "length")])
                self._sides[gateway].socket.send([encode(last)])

    def _say_hello(self, gateway: bytes) -> None:
        hello = Hello(wire_version=WIRE_VERSION, role=Role.DECODE, name="d0", incarnation="1")
        self._sides[gateway].socket.send([encode(hello)])

    def _greet(self, gateway: bytes, hello: Hello) -> None:
        if gateway not in self._sides:
            socket = Socket(
                STREAM,
                connect=hello.stream_endpoint,
                identity=b"d0|1",
                on_frames=lambda _: self._sides[gateway].welcomed.set(),
                on_connected=lambda: self._say_hello(gateway),
            )
            self._sides[gateway] = Side(socket)
            socket.start()
        fleet = Fleet(ready=True, prefill_ready=1, decode_ready=1, max_model_len=100_000)
        for message in (Welcome(wire_version=WIRE_VERSION, name="r0", incarnation="1"), fleet):
            self._control.send([gateway, encode(message)])


def main(pipe: Connection, control: str) -> None:
    """Serves plans from the pipe until it gets None. Each is acknowledged, so that no request comes
    before its plan; one with streams is answered when they have ended."""
    uvloop.run(_serve(pipe, control))


async def _serve(pipe: Connection, control: str) -> None:
    pump = Pump(control)
    loop = asyncio.get_running_loop()
    pipe.send("ready")
    while (plan := await loop.run_in_executor(None, pipe.recv)) is not None:
        pump.plan = plan
        pipe.send("taken")
        if plan.streams:
            pipe.send(await pump.run(plan))
    pump.close()
