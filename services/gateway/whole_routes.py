"""HTTP handlers of the whole API: a body in, JSON or server-sent events out.

Nothing is written before the engine has spoken or the answer ended, so that a refusal is an
ordinary HTTP error even on a route whose first events say nothing. After that a failure is an
event in the route's own shape, and the stream ends without [DONE].
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import msgspec
from aiohttp import web

from common.clock import Clock
from common.config import GatewayConfig
from common.errors import BatonError, Code
from services.gateway.api.lazy import LazyApi
from services.gateway.api.responses import error_object
from services.gateway.api.routes import Route
from services.gateway.api.whole import Asking, Origin, Whole
from services.gateway.api.whole_timings import events_with_timings, with_timings
from services.gateway.app import App
from services.gateway.http.guard import JSON_TYPE, reply_headers
from services.gateway.streams.sse import Connection

SSE_HEADERS = {
    "Content-Type": "text/event-stream; charset=utf-8",
    "Cache-Control": "no-cache",
    "X-Accel-Buffering": "no",
}


class WholeRoutes:
    def __init__(self, api: LazyApi, app: App, config: GatewayConfig, clock: Clock) -> None:
        self._api = api
        self._app = app
        self._config = config
        self._clock = clock

    @property
    def is_served(self) -> bool:
        """False: only plain text is."""
        return self._api.is_served

    async def answer(
        self, request: web.Request, route: Route, body: bytes, origin: Origin
    ) -> web.StreamResponse:
        """Raises BatonError before anything is written."""
        asking = Asking(route, body, origin, context=await self._app.context())
        try:
            answer = await self._api.ask(asking)
            wanted = origin.timings and bool(asking.calls)
            if isinstance(answer, Whole):
                body = with_timings(answer.body, asking) if wanted else answer.body
                return web.Response(body=body, content_type=JSON_TYPE)
            chunks = answer.chunks
            if origin.timings:
                chunks = events_with_timings(chunks, asking, self._clock.unix_ms() // 1000)
            return await self._stream(request, asking, chunks)
        finally:
            self._api.end(asking, "client gone")

    async def keep(self, route: Route, body: bytes, origin: Origin, sink: Connection) -> None:
        """A stream whose client may come and go: its events, or why there are none, to `sink`."""
        asking = Asking(route, body, origin, context=await self._app.context())
        spoke = False
        try:
            answer = await self._api.ask(asking)
            if isinstance(answer, Whole):
                raise BatonError(Code.INVALID_REQUEST, "this request is not for a stream")
            chunks = answer.chunks
            if origin.timings:
                chunks = events_with_timings(chunks, asking, self._clock.unix_ms() // 1000)
            early = [chunk async for chunk in _until(chunks, asking)]
            spoke = True
            sink.write(b"".join(early))
            async for chunk in chunks:
                sink.write(chunk)
            sink.end()
        except BatonError as error:
            if not spoke:
                raise
            sink.write(_failed(route, error))
            sink.end()
        finally:
            self._api.end(asking, "client gone")

    async def _stream(
        self, request: web.Request, asking: Asking, chunks: AsyncIterator[bytes]
    ) -> web.StreamResponse:
        early = [chunk async for chunk in _until(chunks, asking)]
        headers = {**SSE_HEADERS, **reply_headers(request, "first-token")}
        response = web.StreamResponse(headers=headers)
        if "Upgrade" in request.headers:
            response.force_close()
        await response.prepare(request)
        try:
            await self._write(response, b"".join(early))
            async for chunk in chunks:
                await self._write(response, chunk)
        except BatonError as error:
            await self._write(response, _failed(asking.route, error))
        except TimeoutError:
            if request.transport is not None:
                request.transport.abort()
            return response
        await response.write_eof()
        return response

    async def _write(self, response: web.StreamResponse, chunk: bytes) -> None:
        """Raises TimeoutError for a client that takes nothing for too long."""
        async with asyncio.timeout(self._config.slow_client_ms_max / 1000):
            await response.write(chunk)


async def _until(chunks: AsyncIterator[bytes], asking: Asking) -> AsyncIterator[bytes]:
    """The chunks up to the first that the engine has caused."""
    while not asking.spoke:
        try:
            yield await anext(chunks)
        except StopAsyncIteration:
            return


def error_body_of(route: Route, error: BatonError) -> bytes:
    if route.is_anthropic:
        about = {"type": error.face.openai_type, "message": error.message}
        return msgspec.json.encode({"type": "error", "error": about})
    return msgspec.json.encode({"error": error_object(error)})


def _failed(route: Route, error: BatonError) -> bytes:
    told = BatonError(Code.STREAM_INTERRUPTED, error.message)
    if route.is_anthropic:
        return b"event: error\ndata: " + error_body_of(route, told) + b"\n\n"
    if route is Route.RESPONSES:
        about = {"type": "error", "code": told.code.value, "message": told.message, "param": None}
        return b"event: error\ndata: " + msgspec.json.encode(about) + b"\n\n"
    return b"data: " + error_body_of(route, told) + b"\n\n"
