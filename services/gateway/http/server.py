"""The HTTP server on aiohttp.

Theory of operation: a handler reads and checks a request, opens it, and waits. Tokens of a stream
never pass through the handler. The answer writes each engine step's frame from the ZeroMQ callback
straight to the transport, in chunked framing of its own. It wakes the handler only for the first
frame, which needs headers before it, and after the last. A cut or lost connection cancels the
handler, which closes the request as it ends.

`http/guard.py` has what every request passes, such as the check of its key.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import ssl
from collections.abc import Iterable, Iterator, Mapping

from aiohttp import web
from aiohttp.http import HttpVersion11
from aiohttp.typedefs import Handler

from common.clock import Clock
from common.config import Config
from common.errors import BatonError, Code
from common.net.connection_limits import ConnectionLimits, LimitedConnection
from common.process.descriptors import kept_from_clients, soft_limit
from common.telemetry.log import Logger
from services.gateway.api.intake import deadline_ms, session_id, wants_timings
from services.gateway.api.kinds import Kind, RequestSpec
from services.gateway.api.parse import kind_of
from services.gateway.api.routes import ROUTE_OF, Route
from services.gateway.api.sse import SseAnswer
from services.gateway.auth.caller import Caller
from services.gateway.full_api.port import Origin
from services.gateway.http.app import App
from services.gateway.http.client_connection import ClientConnection, WriteBatcher
from services.gateway.http.full_api_routes import SSE_HEADERS, FullApiRoutes, error_body_of
from services.gateway.http.guard import (
    CALLER,
    IGNORED,
    INTERNAL_ID,
    JSON_TYPE,
    RESUMABLE,
    TIMER,
    Guard,
    error_response,
    reply_headers,
)
from services.gateway.http.memory_limit import MemoryLimit
from services.gateway.http.reply import checked_trace
from services.gateway.http.request_form import check_body_type, read_body
from services.gateway.http.resumable import (
    RESUME_PATH,
    ResumableRoutes,
    asks_to_resume,
    wants_stream,
)
from services.gateway.http.stream_owners import StreamOwners

OTHER_ROUTES = [route for route in Route if route not in ROUTE_OF.values()]
SHUTDOWN_SECONDS = 1.0
BACKLOG = 2_048
#: The kernel would otherwise buffer 4 MiB for a client that does not read.
SEND_BUFFER_BYTES = 128 << 10


class HttpServer:
    """Listens from `start` to `close`. Raises BatonError(CONFIG_INVALID) if it cannot."""

    def __init__(
        self,
        app: App,
        full_api: FullApiRoutes,
        config: Config,
        owners: StreamOwners,
        *,
        guard: Guard,
        other_routes: Iterable[tuple[str, str, Handler]],
        clock: Clock,
        log: Logger,
    ) -> None:
        """`other_routes`: method, path and handler of those that generate nothing."""
        self._app = app
        self._full_api = full_api
        self._config = gateway = config.gateway
        self._clock = clock
        self._owners = owners
        self._guard = guard
        self.batcher = WriteBatcher()
        self.resumable = ResumableRoutes(
            app,
            gateway,
            owners,
            batcher=self.batcher,
            begin=self._begin,
            clock=clock,
            log=log,
        )
        application = web.Application(
            client_max_size=gateway.body_bytes_max, middlewares=[guard.middleware()]
        )
        for method, path, handler in (*self._generating_routes(), *other_routes):
            for prefix in {"", gateway.root_path}:
                if method == "GET":
                    application.router.add_get(prefix + path, handler)
                else:
                    application.router.add_route(method, prefix + path, handler)
        self._runner = web.AppRunner(
            application,
            handler_cancellation=True,
            auto_decompress=False,
            access_log=None,
            logger=_silent(),
            keepalive_timeout=gateway.idle_ms_max / 1000,
            shutdown_timeout=SHUTDOWN_SECONDS,
        )
        self.connection_limits = ConnectionLimits(
            gateway.connections_max,
            gateway.connections_per_ip_max,
            gateway.header_ms_max / 1000,
            kept_from_clients(config, soft_limit()),
        )
        self.memory_limit = MemoryLimit(config.gateway)
        self._listener: asyncio.Server | None = None
        #: On the Unix socket, for the other gateways of this host.
        self._local: asyncio.Server | None = None

    @property
    def routes(self) -> list[tuple[str, str]]:
        """Method and path pattern of every route."""
        resources = self._runner.app.router.resources()
        return [(route.method, resource.canonical) for resource in resources for route in resource]

    @property
    def answering(self) -> int:
        """Requests whose answers are not yet written to their end."""
        return self._guard.answering

    async def start(self, tls: ssl.SSLContext | None) -> tuple[str, int]:
        """Returns the address it listens on."""
        host, port = self._config.host, self._config.port
        await self._runner.setup()
        server = self._runner.server
        assert server is not None
        loop, limits = asyncio.get_running_loop(), self.connection_limits
        try:
            self._listener = listener = await loop.create_server(
                lambda: LimitedConnection(limits, server, tls),
                host,
                port,
                reuse_port=True,
                backlog=BACKLOG,
            )
        except OSError as error:
            raise BatonError(
                Code.CONFIG_INVALID, f"cannot listen on {host}:{port}: {error.strerror or error}"
            ) from error
        path = self._owners.socket_path
        path.unlink(missing_ok=True)
        self._local = await loop.create_unix_server(
            lambda: LimitedConnection(limits, server), str(path)
        )
        path.chmod(0o660)
        for sock in listener.sockets:  # its connections inherit it
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SEND_BUFFER_BYTES)
        bound = listener.sockets[0].getsockname()
        return str(bound[0]), int(bound[1])

    def stop_listening(self) -> None:
        """Connections stay open. Idempotent."""
        if self._listener is not None:
            self._listener.close()

    async def close(self) -> None:
        self.stop_listening()
        if self._local is not None:
            self._local.close()
        await self.resumable.close()
        await self._runner.cleanup()
        self._owners.socket_path.unlink(missing_ok=True)

    # ------------------------------------------------------------ generation

    def _generating_routes(self) -> Iterator[tuple[str, str, Handler]]:
        yield "POST", Route.CHAT.value, self._chat
        yield "POST", Route.COMPLETION.value, self._completion
        yield "POST", "/invocations", self._invocation
        yield "GET", RESUME_PATH, self.resumable.resume
        for route in OTHER_ROUTES:
            yield "POST", route.value, self._other(route)

    async def _chat(self, request: web.Request) -> web.StreamResponse:
        return await self._generate(request, Kind.CHAT, await self._body(request))

    async def _completion(self, request: web.Request) -> web.StreamResponse:
        return await self._generate(request, Kind.COMPLETION, await self._body(request))

    async def _invocation(self, request: web.Request) -> web.StreamResponse:
        """SageMaker's one route: the body says what it is."""
        body = await self._body(request)
        return await self._generate(request, kind_of(body), body)

    async def _generate(self, request: web.Request, kind: Kind, body: bytes) -> web.StreamResponse:
        origin, route = _origin(request), ROUTE_OF[kind]
        spec = await self._full_api.plain_spec(kind, body, origin)
        if spec is None:
            return await self._beyond_plain(request, route, body, origin)
        caller = origin.caller
        if asks_to_resume(request, stream=spec.stream):
            return await self.resumable.open(request, spec, caller)
        if spec.stream:
            return await self._stream(request, spec, caller)
        body = await self._app.answered(spec, caller, self._clock)
        return web.Response(body=body, content_type=JSON_TYPE)

    def _other(self, route: Route) -> Handler:
        async def handler(request: web.Request) -> web.StreamResponse:
            try:
                body = await self._body(request)
                return await self._beyond_plain(request, route, body, _origin(request))
            except BatonError as error:
                return error_response(error, error_body_of(route, error))

        return handler

    async def _beyond_plain(
        self, request: web.Request, route: Route, body: bytes, origin: Origin
    ) -> web.StreamResponse:
        full_api = self._full_api
        if RESUMABLE not in request.headers or not asks_to_resume(
            request, stream=wants_stream(body)
        ):
            return await full_api.answer(request, route, body, origin)
        request_id, caller = origin.request_id, origin.caller
        return await self.resumable.open_with(
            request,
            request_id,
            caller,
            lambda sink: full_api.write_to_sink(route, body, origin, sink),
        )

    async def _body(self, request: web.Request) -> bytes:
        """Raises BatonError(UNSUPPORTED_MEDIA_TYPE | OVERLOADED | REQUEST_TIMEOUT |
        INVALID_REQUEST)."""
        check_body_type(request.headers.get("Content-Type", ""), self._config.body_types)
        self.memory_limit.check()
        return await read_body(request, self._config)

    async def _stream(
        self, request: web.Request, spec: RequestSpec, caller: Caller
    ) -> web.StreamResponse:
        connection = ClientConnection(self._config, self.batcher)
        self._app.open(spec, SseAnswer(spec, connection, self._clock.monotonic), caller)
        try:
            await connection.started
            response = await self._begin(request, connection)
            await connection.ended
        finally:
            self._app.close(spec, connection.cut_reason or "client gone")
        return response

    async def _begin(
        self,
        request: web.Request,
        connection: ClientConnection | None,
        more: Mapping[str, str] | None = None,
    ) -> web.StreamResponse:
        chunked = request.version >= HttpVersion11
        first_token = reply_headers(request, "first-token", self._clock.monotonic())
        headers = {**SSE_HEADERS, **first_token, **(more or {})}
        response = web.StreamResponse(headers=headers)
        if "Upgrade" in request.headers:
            response.force_close()
        if chunked:
            response.enable_chunked_encoding()
        writer = await response.prepare(request)
        if writer is None or request.transport is None:
            raise ConnectionResetError("the client left")
        writer.send_headers()
        if connection is not None:
            connection.attach(request.transport, chunked=chunked)
        return response


def _origin(request: web.Request) -> Origin:
    """Raises BatonError(INVALID_REQUEST)."""
    return Origin(
        request_id=request[INTERNAL_ID],
        caller=request[CALLER],
        deadline_ms=deadline_ms(request.headers.get("x-deadline-ms")),
        session=session_id(request.headers.get("x-session-id")),
        timer=request[TIMER],
        timings=wants_timings(request.headers.get("x-timings")),
        traceparent=checked_trace(request.headers.get("traceparent")),
        ignored=request[IGNORED],
    )


def _silent() -> logging.Logger:
    """aiohttp would log a traceback for each malformed request, and anybody may send many of those.
    The guard logs our own failures."""
    logger = logging.getLogger("services.gateway.http")
    logger.disabled = True
    return logger
