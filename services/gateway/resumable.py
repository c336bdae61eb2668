"""HTTP for streams that outlive their connection: `x-resumable`, and GET /v1/streams/{id}.

A client that comes back takes the place of one that is still there: after a network failure the
old connection looks alive from here for a while. The handler of a lost connection leaves the
stream running; `tick` ends what nobody came back to.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from typing import Any

import msgspec
from aiohttp import web

from common.config import GatewayConfig
from common.errors import BatonError, Code
from common.lifecycle import Tasks
from common.log import Logger
from services.gateway.api.kinds import Call, Kind
from services.gateway.api.responses import error_body
from services.gateway.app import App
from services.gateway.auth.caller import Caller
from services.gateway.http.connection import ClientConnection, Outbox
from services.gateway.http.guard import CALLER
from services.gateway.streams.replay import Replay, Replays
from services.gateway.streams.sse import END, Connection, SseAnswer

RESUME_PATH = "/v1/streams/{id}"
HEADER = "x-resumable"
ID_HEADER = "x-stream-id"
LAST_ID = re.compile(r"\d{1,15}")
PREFIXES = tuple(f"{kind.value}-" for kind in Kind)

Begin = Callable[[web.Request, ClientConnection, Mapping[str, str]], Awaitable[web.StreamResponse]]
Make = Callable[[Connection], Coroutine[Any, Any, None]]
Flush = Callable[[web.Request, web.StreamResponse], Awaitable[None]]


def asks_to_resume(request: web.Request, *, stream: bool) -> bool:
    """Raises BatonError(INVALID_REQUEST)."""
    asked = request.headers.get(HEADER, "false").lower()
    if asked not in ("true", "false"):
        raise BatonError(Code.INVALID_REQUEST, f"{HEADER} must be true or false", param=HEADER)
    if asked == "true" and not stream:
        sentence = f"{HEADER} is for streams; set stream to true or leave it out"
        raise BatonError(Code.INVALID_REQUEST, sentence, param=HEADER)
    return asked == "true"


class StreamFlag(msgspec.Struct):
    stream: bool = False


def wants_stream(body: bytes) -> bool:
    """Of a body that has yet to be checked; what is no JSON is found out then."""
    try:
        return msgspec.json.decode(body, type=StreamFlag).stream
    except msgspec.DecodeError:
        return True


class ResumableRoutes:
    """`begin` sends a stream's headers, `flush` the end of its body. What makes a stream beyond the
    plain path is a task of its own, since its handler ends with the connection."""

    def __init__(
        self,
        app: App,
        config: GatewayConfig,
        outbox: Outbox,
        begin: Begin,
        flush: Flush,
        log: Logger,
    ) -> None:
        self._log = log
        self._tasks = Tasks()
        self._makers: dict[str, asyncio.Task[None]] = {}
        self._app = app
        self._config = config
        self._outbox = outbox
        self._begin = begin
        self._flush = flush
        self._now = asyncio.get_running_loop().time
        self._replays = Replays(
            config.resumable_streams_max, config.resumable_bytes_max, config.resume_ms / 1000
        )

    async def open(self, request: web.Request, call: Call, caller: Caller) -> web.StreamResponse:
        """A new stream. Raises BatonError."""
        replay = self._replays.open(call.request_id, caller.key_id)
        self._app.open(call, SseAnswer(call, replay), caller)
        return await self._follow(request, replay, after=0)

    async def open_with(
        self, request: web.Request, request_id: str, caller: Caller, make: Make
    ) -> web.StreamResponse:
        """A new stream that `make` writes. Raises BatonError."""
        replay = self._replays.open(request_id, caller.key_id)
        task = self._tasks.start(f"stream-{request_id}", self._make(replay, make), ends=True)
        self._makers[request_id] = task
        task.add_done_callback(lambda _: self._makers.pop(request_id, None))
        return await self._follow(request, replay, after=0)

    async def close(self) -> None:
        """Ends what is still being made."""
        await self._tasks.cancel_all()

    async def again(self, request: web.Request) -> web.StreamResponse:
        """GET /v1/streams/{id}, where the id may have its response's prefix."""
        given = request.match_info["id"]
        prefix = next((each for each in PREFIXES if given.startswith(each)), "")
        replay = self._replays.find(given.removeprefix(prefix), request[CALLER].key_id)
        return await self._follow(request, replay, _last_id(request))

    def tick(self) -> None:
        """Several times a second."""
        for request_id in self._replays.expire(self._now()):
            maker = self._makers.get(request_id)
            if maker is None:
                self._app.abandon(request_id)
            else:
                maker.cancel()

    async def _make(self, replay: Replay, make: Make) -> None:
        """Never raises: it would end the gateway."""
        try:
            await make(replay)
        except BatonError as error:
            replay.refuse(error)
        except Exception as error:  # noqa: BLE001 - a defect must not take other streams along
            self._log.error("request.crashed", request_id=replay.request_id, exc_info=error)
            _fail(replay, BatonError(Code.INTERNAL, "internal error"))

    async def _follow(self, request: web.Request, replay: Replay, after: int) -> web.StreamResponse:
        connection = ClientConnection(self._config, self._outbox)
        replay.attach(connection, after)
        try:
            if not replay.spoke:
                await connection.started
            response = await self._begin(request, connection, {ID_HEADER: replay.request_id})
            await connection.ended
            await self._flush(request, response)
        finally:
            self._replays.left(replay, connection, self._now())
        return response


def _fail(replay: Replay, error: BatonError) -> None:
    """As an answer would be told, or as an event once something was said."""
    if not replay.spoke:
        replay.refuse(error)
        return
    replay.write(b"data: " + error_body(error) + END)
    replay.end()


def _last_id(request: web.Request) -> int:
    """0 = from the beginning. Raises BatonError(INVALID_REQUEST)."""
    given = request.headers.get("Last-Event-ID", "0")
    if not LAST_ID.fullmatch(given):
        sentence = "Last-Event-ID must be the number of an event of this stream"
        raise BatonError(Code.INVALID_REQUEST, sentence, param="last-event-id")
    return int(given)
