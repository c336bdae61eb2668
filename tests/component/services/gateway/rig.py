"""A gateway daemon between a fake router and fake decode workers, over the real sockets."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

import aiohttp

from common.config import Config
from common.messages import (
    WIRE_VERSION,
    Delta,
    Fleet,
    GatewayToDecode,
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
from common.net.endpoints import STREAM, control_address
from common.net.wire import decode_body
from common.process.lifecycle import Tasks
from services.gateway.daemon import Gateway
from services.gateway.full_api.port import FullApi
from tests.rigs.peers import WAIT_SECONDS, Peer


class FakeRouter(Peer):
    """Welcomes everybody. `answer` decides on each Submit; None = say nothing."""

    def __init__(self, config: Config, max_model_len: int) -> None:
        self.bodies: dict[str, RequestBody] = {}
        self.answer: Callable[[Submit], Message | None] = place_on("d0")
        self.fleet = Fleet(ready=True, prefill_ready=1, decode_ready=1, max_model_len=max_model_len)
        self.hello = asyncio.Event()
        self.stream_endpoint = ""
        super().__init__(control_address(config), ToRouter)

    def on_frames(self, frames: list[bytes]) -> None:
        super().on_frames(frames)
        message = self.decoded(frames)
        if isinstance(message, Hello):
            self.stream_endpoint = message.stream_endpoint
            self.send(Welcome(wire_version=WIRE_VERSION, name="r0", incarnation="1"))
            self.send(self.fleet)
            self.hello.set()
        if isinstance(message, Submit):
            self.bodies[message.request_id] = decode_body(frames[2])
            reply = self.answer(message)
            if reply is not None:
                self.send(reply)


class FakeWorker(Peer):
    """A decode worker that says what the test tells it to."""

    def __init__(
        self, endpoint: str, name: str = "d0", *, greets: bool = True, **hello: Any
    ) -> None:
        self.welcomed = asyncio.Event()
        about: dict[str, Any] = {"wire_version": WIRE_VERSION, "role": Role.DECODE, **hello}
        self._hello = Hello(name=name, incarnation="1", **about) if greets else None
        super().__init__(endpoint, GatewayToDecode, STREAM, identity=f"{name}|1")

    def on_connected(self) -> None:
        super().on_connected()
        if self._hello is not None:
            self.send(self._hello)

    def on_frames(self, frames: list[bytes]) -> None:
        super().on_frames(frames)
        if isinstance(self.decoded(frames), Welcome):
            self.welcomed.set()


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
        await worker.up()
        return worker

    async def ready(self) -> None:
        async with asyncio.timeout(WAIT_SECONDS):
            await self.router.hello.wait()
            while (await self.http.get(f"{self.url}/health")).status != 200:
                pass

    def stand_in(self, api: FullApi) -> None:
        """Serves it in the place of vLLM's classes, which nothing loads then."""
        lazy = self.gateway._models[self.config.model.served_name].full_api
        lazy._load, lazy._on_load = lambda: api, lambda: None

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

    async def stop(self) -> None:
        """The gateway and its workers are gone. Workers that stay come to the next gateway by
        themselves, under the names of that one's."""
        await self.gateway.stop()
        while self.workers:
            self.workers.pop().close()

    async def close(self) -> None:
        await self.http.close()
        for worker in self.workers:
            worker.close()
        await self.gateway.stop()
        await self.tasks.cancel_all()
        self.router.close()


MakeRig = Callable[..., Awaitable[Rig]]


def delta(submit: Submit, index: int, text: str, **more: Any) -> Tokens:
    """The message with it; the embedded tokenizer has one token per byte."""
    ids = list(text.encode())
    return Tokens(deltas=[Delta(submit.request_id, submit.attempt, index, ids, **more)])


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
