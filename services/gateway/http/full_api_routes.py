"""HTTP handlers of the full API: a body in, JSON or server-sent events out.

Nothing is written before an engine has sent output or the answer has ended, so that a refusal is an
ordinary HTTP error even on a route whose first events have no content. A failure after that is an
event in the route's own shape, and the stream ends without [DONE].
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import replace
from typing import Protocol

import msgspec
from aiohttp import web

from common.clock import Clock
from common.config import GatewayConfig
from common.errors import BatonError, Code
from services.gateway.api.kinds import Kind, RequestSpec
from services.gateway.api.response_bodies import error_object
from services.gateway.api.routes import ROUTE_OF, Route
from services.gateway.auth.caller import Caller
from services.gateway.full_api.lazy import LazyApi, plain_refusal
from services.gateway.full_api.port import ApiRequest, EventReply, JsonReply, Origin
from services.gateway.full_api.timings import events_with_timings, with_timings
from services.gateway.http.app import App, Asked
from services.gateway.http.client_connection import taken_in_time
from services.gateway.http.guard import JSON_TYPE, reply_headers
from services.gateway.streams.replay import StreamReplay

SSE_HEADERS = {
    "Content-Type": "text/event-stream; charset=utf-8",
    "Cache-Control": "no-cache",
    "X-Accel-Buffering": "no",
}


class ResponseStore(Protocol):
    """Knows the conversations of `/v1/responses`."""

    async def answer(
        self, api_request: ApiRequest, api: LazyApi, model: str
    ) -> JsonReply | EventReply:
        """What `api` answers, in its conversation. `model`: the one that is asked. Raises
        BatonError."""
        ...


class FullApiRoutes:
    """`apis`: that of each model, by its name. `parses_chats`: names of the models of which every
    chat is rendered or parsed by classes of vLLM's, so that no chat is served without it.
    `responses`: None where none are stored."""

    def __init__(
        self,
        apis: Mapping[str, LazyApi],
        app: App,
        config: GatewayConfig,
        clock: Clock,
        *,
        parses_chats: frozenset[str],
        responses: ResponseStore | None = None,
    ) -> None:
        self._responses = responses
        self._parses_chats = parses_chats
        self._apis = apis
        self._app = app
        self._config = config
        self._clock = clock

    @property
    def is_served(self) -> bool:
        """False where only plain text is served."""
        return any(api.is_served for api in self._apis.values())

    def parses_chat(self, body: bytes, caller: Caller) -> bool:
        """Raises BatonError(MODEL_NOT_FOUND)."""
        return (
            bool(self._parses_chats)
            and self._app.chosen(body, caller).model.name in self._parses_chats
        )

    async def plain_spec(self, kind: Kind, body: bytes, origin: Origin) -> RequestSpec | None:
        """The checked request; None: it needs the full API. Raises BatonError."""
        if kind is Kind.CHAT and self.parses_chat(body, origin.caller):
            return None
        try:
            spec = await self._app.prepare(
                kind,
                body,
                origin.request_id,
                origin.deadline_ms,
                origin.ignored,
                origin.caller,
            )
        except BatonError as error:
            if error.code is not Code.UNSUPPORTED_PARAMETER or not self.is_served:
                raise plain_refusal(ROUTE_OF[kind], error) from error
            return None
        return replace(
            spec,
            session=origin.session or spec.session,
            timer=origin.timer,
            timings=origin.timings,
            traceparent=origin.traceparent,
        )

    async def answered(
        self,
        route: Route,
        body: bytes,
        origin: Origin,
        on_event: Callable[[bytes], None] | None = None,
    ) -> bytes:
        """The body of an answer; of one that streams, each event goes to `on_event`, and the last
        is returned. Who waits for it may be cancelled. Raises BatonError."""
        asked = await self._asked(route, body, origin)
        api = self._apis[asked.model.name]
        api_request = ApiRequest(route, body, origin, asked.adapter)
        try:
            reply = await api.answer(api_request)
            if isinstance(reply, JsonReply):
                return reply.body
            if on_event is None:
                sentence = "an answer cannot be streamed here"
                raise BatonError(Code.INVALID_REQUEST, sentence, param="stream")
            event = b""
            async for event in reply.chunks:
                on_event(event)
            return event
        finally:
            api.end(api_request, "client gone")

    async def answer(
        self, request: web.Request, route: Route, body: bytes, origin: Origin
    ) -> web.StreamResponse:
        """Raises BatonError before anything is written."""
        asked = await self._asked(route, body, origin)
        api_request = ApiRequest(route, body, origin, asked.adapter)
        try:
            reply = await self._reply(asked, api_request)
            if isinstance(reply, EventReply):
                chunks = self._chunks(api_request, reply)
                early = [chunk async for chunk in _until_output(chunks, api_request)]
                about = (self._config, self._clock)
                return await send_events(request, route, b"".join(early), chunks, *about)
            body = reply.body
            if origin.timings and api_request.specs:
                body = with_timings(body, api_request, self._clock.monotonic())
            return web.Response(body=body, content_type=JSON_TYPE)
        finally:
            self._apis[asked.model.name].end(api_request, "client gone")

    async def _asked(self, route: Route, body: bytes, origin: Origin) -> Asked:
        """What is asked for, once the fleet's longest sequence is known. Raises BatonError for a
        model that has no such route."""
        asked = self._app.chosen(body, origin.caller)
        asked.model.check_route(route)
        await asked.model.context()
        return asked

    async def _reply(self, asked: Asked, api_request: ApiRequest) -> JsonReply | EventReply:
        """To a client that asks by itself, not in a batch."""
        api = self._apis[asked.model.name]
        if self._responses is None or api_request.route is not Route.RESPONSES:
            return await api.answer(api_request)
        return await self._responses.answer(api_request, api, asked.model.name)

    async def write_to_sink(
        self, route: Route, body: bytes, origin: Origin, sink: StreamReplay
    ) -> None:
        """Writes the events of a resumable stream to `sink`. Raises BatonError before the first."""
        asked = await self._asked(route, body, origin)
        api_request = ApiRequest(
            route, body, origin, asked.adapter, is_attended=lambda: sink.has_client
        )
        began = False
        try:
            reply = await self._reply(asked, api_request)
            if isinstance(reply, JsonReply):
                raise BatonError(Code.INVALID_REQUEST, "this request is not for a stream")
            chunks = self._chunks(api_request, reply)
            early = [chunk async for chunk in _until_output(chunks, api_request)]
            began = True
            sink.write(b"".join(early))
            async for chunk in chunks:
                sink.write(chunk)
            sink.end()
        except BatonError as error:
            if not began:
                raise
            sink.write(_failed(route, error))
            sink.end()
        finally:
            self._apis[asked.model.name].end(api_request, "client gone")

    def _chunks(self, api_request: ApiRequest, reply: EventReply) -> AsyncIterator[bytes]:
        if not api_request.origin.timings:
            return reply.chunks
        return events_with_timings(reply.chunks, api_request, self._clock)


async def send_events(
    request: web.Request,
    route: Route,
    early: bytes,
    chunks: AsyncIterator[bytes],
    config: GatewayConfig,
    clock: Clock,
) -> web.StreamResponse:
    """The events in `early`, and those of `chunks` as they come. An error of theirs is the last."""

    async def write(chunk: bytes) -> None:
        if request.transport is None:
            raise ConnectionResetError("the client left")
        async with taken_in_time(request.transport, config):
            await response.write(chunk)

    headers = {**SSE_HEADERS, **reply_headers(request, "first-token", clock.monotonic())}
    response = web.StreamResponse(headers=headers)
    if "Upgrade" in request.headers:
        response.force_close()
    await response.prepare(request)
    try:
        await write(early)
        async for chunk in chunks:
            await write(chunk)
    except BatonError as error:
        await write(_failed(route, error))
    return response


async def _until_output(
    chunks: AsyncIterator[bytes], api_request: ApiRequest
) -> AsyncIterator[bytes]:
    """The chunks up to the first that an engine has caused."""
    while not api_request.has_output:
        try:
            yield await anext(chunks)
        except StopAsyncIteration:
            return


def error_body_of(route: Route, error: BatonError) -> bytes:
    if route.is_anthropic:
        description = {"type": error.http.openai_type, "message": error.message}
        return msgspec.json.encode({"type": "error", "error": description})
    return msgspec.json.encode({"error": error_object(error)})


def _failed(route: Route, error: BatonError) -> bytes:
    error = BatonError(Code.STREAM_INTERRUPTED, error.message)
    if route.is_anthropic:
        return b"event: error\ndata: " + error_body_of(route, error) + b"\n\n"
    if route is Route.RESPONSES:
        event = {"type": "error", "code": error.code.value, "message": error.message, "param": None}
        return b"event: error\ndata: " + msgspec.json.encode(event) + b"\n\n"
    return b"data: " + error_body_of(route, error) + b"\n\n"
