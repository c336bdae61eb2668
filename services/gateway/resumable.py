"""HTTP for streams that outlive their connection: `x-resumable`, and GET /v1/streams/{id}.

A client that comes back takes the place of one that is still there: after a network failure the
old connection looks alive from here for a while. The handler of a lost connection leaves the
stream running; `tick` ends what nobody came back to.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable, Mapping

from aiohttp import web

from common.config import GatewayConfig
from common.errors import BatonError, Code
from services.gateway.api.kinds import Call, Kind
from services.gateway.app import App
from services.gateway.auth.caller import Caller
from services.gateway.http.connection import ClientConnection, Outbox
from services.gateway.http.guard import CALLER
from services.gateway.streams.replay import Replay, Replays
from services.gateway.streams.sse import SseAnswer

RESUME_PATH = "/v1/streams/{id}"
HEADER = "x-resumable"
ID_HEADER = "x-stream-id"
LAST_ID = re.compile(r"\d{1,15}")
PREFIXES = tuple(f"{kind.value}-" for kind in Kind)

Begin = Callable[[web.Request, ClientConnection, Mapping[str, str]], Awaitable[web.StreamResponse]]
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


def refuse_to_resume(request: web.Request, why: str) -> None:
    """Where streams are not kept. Raises BatonError(UNSUPPORTED_PARAMETER) if that was asked."""
    if asks_to_resume(request, stream=True):
        sentence = f"{HEADER} is for chat and completion streams of plain text: {why}"
        raise BatonError(Code.UNSUPPORTED_PARAMETER, sentence, param=HEADER)


class ResumableRoutes:
    """`begin` sends a stream's headers, `flush` the end of its body."""

    def __init__(
        self, app: App, config: GatewayConfig, outbox: Outbox, begin: Begin, flush: Flush
    ) -> None:
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

    async def again(self, request: web.Request) -> web.StreamResponse:
        """GET /v1/streams/{id}, where the id may have its response's prefix."""
        given = request.match_info["id"]
        prefix = next((each for each in PREFIXES if given.startswith(each)), "")
        replay = self._replays.find(given.removeprefix(prefix), request[CALLER].key_id)
        return await self._follow(request, replay, _last_id(request))

    def tick(self) -> None:
        """Several times a second."""
        for request_id in self._replays.expire(self._now()):
            self._app.abandon(request_id)

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


def _last_id(request: web.Request) -> int:
    """0 = from the beginning. Raises BatonError(INVALID_REQUEST)."""
    given = request.headers.get("Last-Event-ID", "0")
    if not LAST_ID.fullmatch(given):
        sentence = "Last-Event-ID must be the number of an event of this stream"
        raise BatonError(Code.INVALID_REQUEST, sentence, param="last-event-id")
    return int(given)
