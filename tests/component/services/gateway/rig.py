"""A gateway daemon between a fake router and fake decode workers, over the real sockets."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any, TypeVar

import aiohttp

from common.config import Config
from common.messages import (
    WIRE_VERSION,
    Delta,
    Fleet,
    Hello,
    Message,
    Placed,
    Refused,
    RequestBody,
    Role,
    Submit,
    Tokens,
    ToRouter,
    Welcome,
)
from common.messages import GatewayToDecode as GatewayToDecodeMessages
from common.net.endpoints import CONTROL, STREAM, control_address
from common.net.sockets import Sent, Socket
from common.net.wire import Decoder, decode_body, encode
from common.process.lifecycle import Tasks
from services.gateway.daemon import Gateway

WAIT_SECONDS = 10.0
M = TypeVar("M", bound=Message)


class Inbox:
    """Messages as they come; `next` skips those of other types."""

    def __init__(self) -> None:
        self._queue: asyncio.Queue[Message] = asyncio.Queue()

    def put(self, message: Message) -> None:
        self._queue.put_nowait(message)

    async def next(self, kind: type[M]) -> M:
        async with asyncio.timeout(WAIT_SECONDS):
            while True:
                message = await self._queue.get()
                if isinstance(message, kind):
                    return message

    def drained(self) -> list[Message]:
        messages = []
        while not self._queue.empty():
            messages.append(self._queue.get_nowait())
        return messages


class FakeRouter:
    """Welcomes everybody. `answer` decides on each Submit; None = say nothing."""

    def __init__(self, config: Config, max_model_len: int) -> None:
        self.inbox = Inbox()
        self.bodies: dict[str, RequestBody] = {}
        self.answer: Callable[[Submit], Message | None] = place_on("d0")
        self.fleet = Fleet(ready=True, prefill_ready=1, decode_ready=1, max_model_len=max_model_len)
        self.gateway = b""
        self.hello = asyncio.Event()
        self.stream_endpoint = ""
        self._decoder: Decoder[ToRouter] = Decoder(ToRouter)
        self._socket = Socket(CONTROL, bind=control_address(config), on_frames=self._on_frames)
        self._socket.start()

    def send(self, message: Message) -> Sent:
        return self._socket.send([self.gateway, encode(message)])

    def send_raw(self, frame: bytes) -> None:
        self._socket.send([self.gateway, frame])

    def close(self) -> None:
        self._socket.close()

    def _on_frames(self, frames: list[bytes]) -> None:
        message = self._decoder.decode(frames[1])
        if isinstance(message, Hello):
            self.gateway, self.stream_endpoint = frames[0], message.stream_endpoint
            self.send(Welcome(wire_version=WIRE_VERSION, name="r0", incarnation="1"))
            self.send(self.fleet)
            self.hello.set()
        if isinstance(message, Submit):
            self.bodies[message.request_id] = decode_body(frames[2])
            reply = self.answer(message)
            if reply is not None:
                self.send(reply)
        self.inbox.put(message)


class FakeWorker:
    """A decode worker that says what the test tells it to."""

    def __init__(
        self,
        endpoint: str,
        name: str = "d0",
        *,
        wire_version: int = WIRE_VERSION,
        role: Role = Role.DECODE,
        greets: bool = True,
    ) -> None:
        self.inbox = Inbox()
        self.welcomed = asyncio.Event()
        self._hello = Hello(wire_version=wire_version, role=role, name=name, incarnation="1")
        self._greets = greets
        self.connected = asyncio.Event()
        self._decoder: Decoder[GatewayToDecodeMessages] = Decoder(GatewayToDecodeMessages)
        self._socket = Socket(
            STREAM,
            connect=endpoint,
            identity=f"{name}|1".encode(),
            on_frames=self._on_frames,
            on_connected=self._say_hello,
        )
        self._socket.start()

    def send(self, *deltas: Delta) -> Sent:
        return self._socket.send([encode(Tokens(deltas=list(deltas)))])

    def send_raw(self, *frames: bytes) -> None:
        self._socket.send(list(frames))

    def close(self) -> None:
        self._socket.close()

    def _say_hello(self) -> None:
        self.connected.set()
        if self._greets:
            self._socket.send([encode(self._hello)])

    def _on_frames(self, frames: list[bytes]) -> None:
        message = self._decoder.decode(frames[0])
        if isinstance(message, Welcome):
            self.welcomed.set()
        self.inbox.put(message)


def place_on(decode: str) -> Callable[[Submit], Message]:
    def answer(submit: Submit) -> Message:
        return Placed(
            request_id=submit.request_id,
            attempt=submit.attempt,
            decode=decode,
            decode_incarnation="1",
        )

    return answer


def refuse_with(code: str, retry_after_ms: int = 0) -> Callable[[Submit], Message]:
    def answer(submit: Submit) -> Message:
        return Refused(
            code=code,
            message="refused by the test",
            request_id=submit.request_id,
            attempt=submit.attempt,
            retry_after_ms=retry_after_ms,
        )

    return answer


class BackgroundRequest:
    """A request under way."""

    def __init__(self, tasks: Tasks, awaitable: Awaitable[aiohttp.ClientResponse]) -> None:
        self._responses: list[aiohttp.ClientResponse] = []
        self._task = tasks.start("client", self._run(awaitable), ends=True)

    async def response(self) -> aiohttp.ClientResponse:
        await self._task
        return self._responses[0]

    def leave(self) -> None:
        self._task.cancel()

    async def _run(self, awaitable: Awaitable[aiohttp.ClientResponse]) -> None:
        self._responses.append(await awaitable)


@dataclass
class Rig:
    """One running gateway and its fakes. `url` ends without a slash."""

    config: Config
    gateway: Gateway
    tasks: Tasks
    http: aiohttp.ClientSession
    url: str
    router: FakeRouter
    workers: list[FakeWorker] = field(default_factory=list)

    async def worker(self, name: str = "d0") -> FakeWorker:
        """Connected and welcomed."""
        worker = await self.stranger(name)
        async with asyncio.timeout(WAIT_SECONDS):
            await worker.welcomed.wait()
        return worker

    async def stranger(self, name: str = "d0", **more: Any) -> FakeWorker:
        """Connected; whether it is welcomed depends."""
        await self.ready()
        worker = FakeWorker(self.router.stream_endpoint, name, **more)
        self.workers.append(worker)
        async with asyncio.timeout(WAIT_SECONDS):
            await worker.connected.wait()
        return worker

    async def ready(self) -> None:
        async with asyncio.timeout(WAIT_SECONDS):
            await self.router.hello.wait()
            while (await self.http.get(f"{self.url}/health")).status != 200:
                pass

    def ask(self, path: str, **body: Any) -> BackgroundRequest:
        """The same in the background."""
        return BackgroundRequest(self.tasks, self.post(path, **body))

    async def turn(self) -> None:
        """Lets the gateway's loop come round."""
        async with self.http.get(f"{self.url}/live") as response:
            assert response.status == 200

    def post(self, path: str, **body: Any) -> Awaitable[aiohttp.ClientResponse]:
        return self.http.post(f"{self.url}{path}", json=body)

    async def gone(self) -> None:
        """Until no request is live in the gateway."""
        async with asyncio.timeout(WAIT_SECONDS):
            while self.gateway.core.active:
                await self.turn()

    def new_router(self, max_model_len: int = 4096) -> FakeRouter:
        self.router.close()
        self.router = FakeRouter(self.config, max_model_len)
        return self.router

    async def close(self) -> None:
        await self.http.close()
        for worker in self.workers:
            worker.close()
        await self.gateway.stop()
        await self.tasks.cancel_all()
        self.router.close()


MakeRig = Callable[..., Awaitable[Rig]]


def delta(submit: Submit, index: int, text: str, **more: Any) -> Delta:
    """The embedded tokenizer has one token per byte."""
    return Delta(submit.request_id, submit.attempt, index, list(text.encode()), **more)


async def next_event(response: aiohttp.ClientResponse) -> Any:
    """One SSE payload; None at the end of the body."""
    while line := await response.content.readline():
        if line.startswith(b"data: "):
            data = line.removeprefix(b"data: ").strip()
            return data.decode() if data == b"[DONE]" else json.loads(data)
    return None


async def all_events(response: aiohttp.ClientResponse) -> list[Any]:
    events = []
    while (event := await next_event(response)) is not None:
        events.append(event)
    return events
