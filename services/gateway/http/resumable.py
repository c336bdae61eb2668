"""HTTP for streams that outlive their connection: `x-resumable`, and GET /v1/streams/{id}.

A client that comes back takes the place of a connection that is still there, because after a
network failure the old one looks alive from here for a while. The handler of a lost connection
leaves the stream running; `tick` ends the streams that no client came back to. A client may come
back to any gateway process of the host (`stream_owners.py`).
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from typing import Any

import aiohttp
import msgspec
from aiohttp import web

from common.clock import Clock
from common.config import GatewayConfig
from common.errors import BatonError, Code
from common.process.lifecycle import Tasks
from common.telemetry.log import Logger
from services.gateway.api.kinds import Kind, RequestSpec
from services.gateway.api.response_bodies import error_body
from services.gateway.api.sse import SseAnswer
from services.gateway.auth.caller import Caller
from services.gateway.http.app import App
from services.gateway.http.client_connection import ClientConnection, WriteBatcher, reset
from services.gateway.http.guard import CALLER, JSON_TYPE, RESUMABLE
from services.gateway.http.stream_owners import StreamOwners
from services.gateway.streams.connection import END
from services.gateway.streams.replay import ReplayTable, StreamReplay

RESUME_PATH = "/v1/streams/{id}"
ID_HEADER = "x-stream-id"
LAST_ID = re.compile(r"\d{1,15}")
#: Those of response ids.
PREFIXES = ("resp_", *(f"{kind.value}-" for kind in Kind))

#: Sends a stream's headers, and attaches the connection, if there is one.
Begin = Callable[
    [web.Request, ClientConnection | None, Mapping[str, str]], Awaitable[web.StreamResponse]
]
#: Writes a stream's events.
Produce = Callable[[StreamReplay], Coroutine[Any, Any, None]]


def asks_to_resume(request: web.Request, *, stream: bool) -> bool:
    """Raises BatonError(INVALID_REQUEST)."""
    given = request.headers.get(RESUMABLE, "false").lower()
    if given not in ("true", "false"):
        sentence = f"{RESUMABLE} must be true or false"
        raise BatonError(Code.INVALID_REQUEST, sentence, param=RESUMABLE)
    if given == "true" and not stream:
        sentence = f"{RESUMABLE} is for streams; set stream to true or leave it out"
        raise BatonError(Code.INVALID_REQUEST, sentence, param=RESUMABLE)
    return given == "true"


class StreamFlag(msgspec.Struct):
    stream: bool = False


def wants_stream(body: bytes) -> bool:
    """Of a body that has yet to be checked; one that is no JSON is refused later."""
    try:
        return msgspec.json.decode(body, type=StreamFlag).stream
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return True


class ResumableRoutes:
    """A stream of the full API is produced by a task of its own, because the handler ends with the
    connection."""

    def __init__(
        self,
        app: App,
        config: GatewayConfig,
        owners: StreamOwners,
        *,
        batcher: WriteBatcher,
        begin: Begin,
        clock: Clock,
        log: Logger,
    ) -> None:
        self._app = app
        self._config = config
        self._owners = owners
        self._batcher = batcher
        self._begin = begin
        self._now = clock.monotonic
        self._log = log
        self._tasks = Tasks()
        #: By request id.
        self._producers: dict[str, asyncio.Task[None]] = {}
        self._replays = ReplayTable(
            config.resumable_streams_max,
            config.resumable_bytes_max,
            config.resume_ms / 1000,
            config.resumable_streams_per_key_max,
        )

    async def open(
        self, request: web.Request, spec: RequestSpec, caller: Caller
    ) -> web.StreamResponse:
        """A new stream. Raises BatonError."""
        replay = self._replays.open(spec.request_id, caller.key_id)
        self._app.open(spec, SseAnswer(spec, replay, self._now), caller)
        return await self._follow(request, replay, after=0)

    async def open_with(
        self, request: web.Request, request_id: str, caller: Caller, produce: Produce
    ) -> web.StreamResponse:
        """A new stream that `produce` writes. Raises BatonError."""
        replay = self._replays.open(request_id, caller.key_id)
        work = self._produce(replay, produce)
        task = self._tasks.start(f"stream-{request_id}", work, ends=True)
        self._producers[request_id] = task
        task.add_done_callback(lambda _: self._producers.pop(request_id, None))
        return await self._follow(request, replay, after=0)

    async def close(self) -> None:
        """Ends the streams that are still produced."""
        await self._tasks.cancel_all()

    async def resume(self, request: web.Request) -> web.StreamResponse:
        """GET /v1/streams/{id}; the id may have the prefix of its response id."""
        stream_id = request.match_info["id"]
        after = _last_id(request)
        owner = self._owners.other_owner(request, stream_id)
        if owner:
            return await self._relay(request, owner)
        key_id = request[CALLER].key_id
        prefix = next((prefix for prefix in PREFIXES if stream_id.startswith(prefix)), "")
        try:
            replay = self._replays.find(stream_id, key_id)
        except BatonError as error:
            if not prefix or error.code is not Code.NOT_FOUND:
                raise
            replay = self._replays.find(stream_id.removeprefix(prefix), key_id)
        return await self._follow(request, replay, after)

    def tick(self) -> None:
        """Call it several times a second."""
        for request_id in self._replays.expire(self._now()):
            self._end(request_id, "its client did not come back")
        for replay in self._replays.full():
            kept = self._config.resumable_bytes_max
            sentence = (
                f"it was ended, because its buffer of {kept} bytes is full of what nobody took"
            )
            self._end(replay.request_id, sentence)
            error = BatonError(Code.STREAM_GONE, sentence)
            replay.end_full(b"data: " + error_body(error) + END)

    def _end(self, request_id: str, reason: str) -> None:
        producer = self._producers.get(request_id)
        if producer is None:
            self._app.abandon(request_id, reason)
        else:
            producer.cancel()

    async def _produce(self, replay: StreamReplay, produce: Produce) -> None:
        """Never raises, because that would end the gateway."""
        try:
            await produce(replay)
        except BatonError as error:
            replay.refuse(error)
        except Exception as error:  # noqa: BLE001 - a defect must not take other streams along
            self._log.error("request.crashed", request_id=replay.request_id, exc_info=error)
            _fail(replay, BatonError(Code.INTERNAL, "internal error"))

    async def _follow(
        self, request: web.Request, replay: StreamReplay, after: int
    ) -> web.StreamResponse:
        connection = ClientConnection(self._config, self._batcher, patient=True)
        left = replay.quiet_since > 0
        replay.attach(connection, after)
        if left:
            self._app.attend(replay.request_id, attended=True)
        try:
            if not replay.has_events:
                await connection.started
            response = await self._begin(request, connection, {ID_HEADER: replay.request_id})
            await connection.ended
        finally:
            self._replays.release(replay, connection, self._now())
            if not (replay.has_client or replay.ended):
                self._app.attend(replay.request_id, attended=False)
        return response

    async def _relay(self, request: web.Request, owner: str) -> web.StreamResponse:
        """Another process's answer, as the client takes it. Where that breaks off, so does ours."""
        async with self._owners.answer_of(owner, request) as answer:
            if answer.status != 200:
                body = await answer.read()
                return web.Response(body=body, status=answer.status, content_type=JSON_TYPE)
            headers = {ID_HEADER: answer.headers[ID_HEADER]}
            response = await self._begin(request, None, headers)
            try:
                async for chunk in answer.content.iter_any():
                    await response.write(chunk)
            except aiohttp.ClientError:
                if request.transport is not None:
                    reset(request.transport)
            return response


def _fail(replay: StreamReplay, error: BatonError) -> None:
    """A failure before the first event is an HTTP error, a later one an event."""
    if not replay.has_events:
        replay.refuse(error)
        return
    replay.write(b"data: " + error_body(error) + END)
    replay.end()


def _last_id(request: web.Request) -> int:
    """0: from the beginning. Raises BatonError(INVALID_REQUEST)."""
    given = request.headers.get("Last-Event-ID", "0")
    if not LAST_ID.fullmatch(given):
        sentence = "Last-Event-ID must be the number of an event of this stream"
        raise BatonError(Code.INVALID_REQUEST, sentence, param="last-event-id")
    return int(given)
