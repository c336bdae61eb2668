"""The HTTP server: everything that is aiohttp's, and nothing else.

Theory of operation: a handler reads and checks a request, opens it, and waits. Tokens of a stream
never pass through the handler: the answer writes each engine step's frame straight to the
transport from the ZeroMQ callback, in its own chunked framing, and wakes the handler only for the
first frame (which must be preceded by headers) and after the last. A cut or lost connection cancels
the handler, whose last act is to close the request.

Default-deny: every request needs a caller before its handler runs, unmatched ones too; only the
routes in `OPEN` do not. The matched route decides, never the text of the path or a header.
"""

from __future__ import annotations

import asyncio
from dataclasses import replace

from aiohttp import web
from aiohttp.http import HttpVersion11
from aiohttp.typedefs import Handler, Middleware

from common.config import GatewayConfig
from common.errors import BatonError, Code
from common.log import Logger
from services.gateway.api.intake import client_id, deadline_ms, request_id, session_id
from services.gateway.api.kinds import Call, Kind
from services.gateway.api.responses import error_body, retry_after_seconds, whole_answer
from services.gateway.app import App
from services.gateway.auth.authenticator import Authenticator
from services.gateway.auth.caller import Caller
from services.gateway.connection import ClientConnection
from services.gateway.streams.answer import Collected
from services.gateway.streams.sse import SseAnswer

REQUEST_ID = "x-request-id"
INTERNAL_ID = web.RequestKey("request_id", str)
CALLER = web.RequestKey("caller", Caller)
OPEN = frozenset({"/health", "/live"})
JSON_TYPE = "application/json"
SSE_HEADERS = {
    "Content-Type": "text/event-stream; charset=utf-8",
    "Cache-Control": "no-cache",
    "X-Accel-Buffering": "no",
}
SHUTDOWN_SECONDS = 1.0
BACKLOG = 2_048


class HttpServer:
    """Listens from `start` to `close`. Raises BatonError(CONFIG_INVALID) if it cannot."""

    def __init__(
        self, app: App, config: GatewayConfig, authenticator: Authenticator, log: Logger
    ) -> None:
        self._app = app
        self._authenticator = authenticator
        self._config = config
        self._log = log
        application = web.Application(
            client_max_size=config.body_bytes_max, middlewares=[self._guard()]
        )
        application.router.add_routes(
            [
                web.post("/v1/chat/completions", self._chat),
                web.post("/v1/completions", self._completion),
                web.get("/v1/models", self._models),
                web.get("/v1/models/{model:.+}", self._model),
                web.get("/health", self._health),
                web.get("/live", self._live),
            ]
        )
        self._runner = web.AppRunner(
            application,
            handler_cancellation=True,
            auto_decompress=False,
            access_log=None,
            shutdown_timeout=SHUTDOWN_SECONDS,
        )

    @property
    def routes(self) -> list[tuple[str, str]]:
        """Method and path pattern of all that is served."""
        resources = self._runner.app.router.resources()
        return [(route.method, each.canonical) for each in resources for route in each]

    async def start(self) -> tuple[str, int]:
        """Returns the address it listens on."""
        host, port = self._config.host, self._config.port
        await self._runner.setup()
        site = web.TCPSite(self._runner, host, port, reuse_port=True, backlog=BACKLOG)
        try:
            await site.start()
        except OSError as error:
            raise BatonError(
                Code.CONFIG_INVALID, f"cannot listen on {host}:{port}: {error.strerror or error}"
            ) from error
        bound = self._runner.addresses[0]
        return str(bound[0]), int(bound[1])

    async def close(self) -> None:
        await self._runner.cleanup()

    # ------------------------------------------------------------ every request

    def _guard(self) -> Middleware:
        @web.middleware
        async def guard(request: web.Request, handler: Handler) -> web.StreamResponse:
            client = client_id(request.headers.get(REQUEST_ID))
            request[INTERNAL_ID] = internal = request_id(client)
            shown = client or internal
            try:
                self._identify(request)
                response = await handler(request)
            except BatonError as error:
                response = _error(error)
            except web.HTTPException as error:
                response = _error(_translated(error, self._config.body_bytes_max))
                if "Allow" in error.headers:
                    response.headers["Allow"] = error.headers["Allow"]
            except asyncio.CancelledError:
                raise
            except ConnectionError:
                response = _gone(request)
            except Exception as error:  # noqa: BLE001 - a defect must not take the connection along
                self._log.error("request.crashed", request_id=internal, exc_info=error)
                response = _error(BatonError(Code.INTERNAL, "internal error"))
            if not response.prepared:
                response.headers[REQUEST_ID] = shown
            return response

        return guard

    def _identify(self, request: web.Request) -> None:
        """Raises BatonError(INVALID_API_KEY)."""
        resource = request.match_info.route.resource
        if resource is None or resource.canonical not in OPEN:
            headers = request.headers
            request[CALLER] = self._authenticator.caller(
                headers.getall("Authorization", ()), headers.getall("x-api-key", ())
            )

    # ------------------------------------------------------------ generation

    async def _chat(self, request: web.Request) -> web.StreamResponse:
        return await self._generate(request, Kind.CHAT)

    async def _completion(self, request: web.Request) -> web.StreamResponse:
        return await self._generate(request, Kind.COMPLETION)

    async def _generate(self, request: web.Request, kind: Kind) -> web.StreamResponse:
        deadline = deadline_ms(request.headers.get("x-deadline-ms"))
        session = session_id(request.headers.get("x-session-id"))
        if "Content-Encoding" in request.headers:
            sentence = "a compressed request body is not accepted"
            raise BatonError(Code.INVALID_REQUEST, sentence, param="content-encoding")
        body = await request.read()
        call = await self._app.call(kind, body, request[INTERNAL_ID], deadline)
        call = replace(call, session=session)
        caller = request[CALLER]
        if call.stream:
            return await self._stream(request, call, caller)
        return await self._whole(call, caller)

    async def _whole(self, call: Call, caller: Caller) -> web.Response:
        answer, done = Collected(), asyncio.Event()
        answer.on_end(done.set)
        self._app.open(call, answer, caller)
        try:
            await done.wait()
        finally:
            self._app.close(call, "client gone")
        if answer.ending is None:
            raise answer.error or BatonError(Code.INTERNAL, "the answer has no end")
        body = whole_answer(call, answer.whole_text, answer.token_ids, answer.ending)
        return web.Response(body=body, content_type=JSON_TYPE)

    async def _stream(self, request: web.Request, call: Call, caller: Caller) -> web.StreamResponse:
        connection = ClientConnection(self._config)
        self._app.open(call, SseAnswer(call, connection), caller)
        try:
            await connection.started
            response = await self._begin(request, connection)
            await connection.ended
            await self._flush(request, response)
        finally:
            self._app.close(call, connection.cut_reason or "client gone")
        return response

    async def _begin(
        self, request: web.Request, connection: ClientConnection
    ) -> web.StreamResponse:
        chunked = request.version >= HttpVersion11
        client = client_id(request.headers.get(REQUEST_ID))
        headers = {**SSE_HEADERS, REQUEST_ID: client or request[INTERNAL_ID]}
        response = web.StreamResponse(headers=headers)
        if chunked:
            response.enable_chunked_encoding()
        writer = await response.prepare(request)
        if writer is None or request.transport is None:
            raise ConnectionResetError("the client left")
        writer.send_headers()
        connection.attach(request.transport, chunked=chunked)
        return response

    async def _flush(self, request: web.Request, response: web.StreamResponse) -> None:
        """The end of the body. A client that does not take it in time is cut; one that left after
        [DONE] has missed nothing."""
        try:
            async with asyncio.timeout(self._config.slow_client_ms_max / 1000):
                await response.write_eof()
        except (TimeoutError, ConnectionError):
            if request.transport is not None:
                request.transport.abort()

    # ------------------------------------------------------------ the rest

    async def _models(self, _request: web.Request) -> web.Response:
        return web.json_response({"object": "list", "data": [self._app.model()]})

    async def _model(self, request: web.Request) -> web.Response:
        return web.json_response(self._app.model(request.match_info["model"]))

    async def _health(self, _request: web.Request) -> web.Response:
        health = self._app.health()
        if health.ready:
            return web.json_response({"status": "ready"})
        body = {"status": "unavailable", "reason": health.reason}
        return web.json_response(body, status=503, headers={"Retry-After": "1"})

    async def _live(self, _request: web.Request) -> web.Response:
        return web.json_response({"status": "live"})


def _error(error: BatonError) -> web.Response:
    response = web.Response(
        body=error_body(error), status=error.face.http_status, content_type=JSON_TYPE
    )
    if error.code is Code.INVALID_API_KEY:
        response.headers["WWW-Authenticate"] = "Bearer"
    seconds = retry_after_seconds(error)
    if seconds is not None:
        response.headers["Retry-After"] = str(seconds)
    return response


def _gone(request: web.Request) -> web.Response:
    """Nobody reads this answer; it spares aiohttp a traceback in the log."""
    if request.transport is not None:
        request.transport.abort()
    return web.Response(status=499)


def _translated(error: web.HTTPException, body_bytes_max: int) -> BatonError:
    match error.status:
        case 404:
            return BatonError(Code.NOT_FOUND, "there is nothing at this path")
        case 405:
            return BatonError(Code.METHOD_NOT_ALLOWED, "this path does not take this method")
        case 413:
            sentence = f"the request body is larger than {body_bytes_max} bytes"
            return BatonError(Code.BODY_TOO_LARGE, sentence)
        case _:
            return BatonError(Code.INVALID_REQUEST, error.reason or "bad request")
