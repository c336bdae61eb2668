"""What every request passes on its way to a handler, and every answer on its way out.

Access is denied by default: a web page needs an origin that is allowed, and a request needs a valid
key before its handler runs, even where no route matches. Only the routes in `OPEN` need none, and
those in `OPERATORS` need one of another file. The matched route decides that, never the text of the
path or a header. Every error is answered in OpenAI's shape.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from contextlib import suppress
from typing import Any, cast

from aiohttp import web
from aiohttp.typedefs import Handler, Middleware

from common.clock import Clock
from common.config import GatewayConfig
from common.errors import BatonError, Code
from common.net.connection_limits import answering
from common.process.handled_request import HandledRequest
from common.telemetry.log import Logger
from services.gateway.api.ignored import IGNORED_HEADER, IgnoredFields
from services.gateway.api.intake import client_id, request_id
from services.gateway.api.response_bodies import error_body, retry_after_seconds
from services.gateway.auth.authenticator import Authenticator
from services.gateway.auth.caller import Caller
from services.gateway.http.client_connection import taken_in_time
from services.gateway.http.cors import Origins, is_preflight, preflight_headers
from services.gateway.http.reply import server_timing, traceparent
from services.gateway.http.request_form import check_form
from services.gateway.http.stream_owners import StreamOwners
from services.gateway.streams.phase_timer import PhaseTimer

REQUEST_ID = "x-request-id"
RESUMABLE = "x-resumable"
INTERNAL_ID = web.RequestKey("request_id", str)
TIMER = web.RequestKey("timer", PhaseTimer)
CALLER = web.RequestKey("caller", Caller)
IGNORED = web.RequestKey("ignored", IgnoredFields)
CORS = web.RequestKey("cors", dict[str, str])
#: Change what the fleet serves, so that nobody without an operator's key may.
ADAPTER_ORDERS = frozenset({"/v1/load_lora_adapter", "/v1/unload_lora_adapter"})
#: Need no key.
OPEN = frozenset({"/health", "/live", "/ping"})
#: Need an operator's key.
OPERATORS = frozenset({"/metrics", *ADAPTER_ORDERS})
SERVER = "baton"
JSON_TYPE = "application/json"


def reply_headers(request: web.Request, metric: str, now: float) -> dict[str, str]:
    """The headers of every answer. `metric`: the name of the time from the request's head to
    `now`."""
    internal = request[INTERNAL_ID]
    headers = {
        "Server": SERVER,
        REQUEST_ID: client_id(request.headers.get(REQUEST_ID)) or internal,
        "Server-Timing": server_timing(metric, request[TIMER].client_phases(now)),
    }
    trace = traceparent(request.headers.get("traceparent"), internal)
    if trace is not None:
        headers["traceparent"] = trace
    ignored = request[IGNORED].header
    if ignored:
        headers[IGNORED_HEADER] = ignored
    return headers | request[CORS]


class Guard:
    def __init__(
        self,
        config: GatewayConfig,
        authenticator: Authenticator,
        operators: Authenticator | None,
        owners: StreamOwners,
        *,
        ignored: Callable[[], IgnoredFields],
        handled: HandledRequest,
        clock: Clock,
        log: Logger,
    ) -> None:
        """`operators`: of their own key file, if there is one. `ignored` makes the record of a new
        request. `handled` tells afterwards which one the loop did not get over."""
        #: Requests whose answers are not yet written to their end.
        self.answering = 0
        self._handled = handled
        self._operators = operators
        self._owners = owners
        self._ignored = ignored
        self._origins = Origins(config.cors_origins)
        self._config = config
        self._authenticator = authenticator
        self._clock = clock
        self._log = log

    def middleware(self) -> Middleware:
        @web.middleware
        async def guard(request: web.Request, handler: Handler) -> web.StreamResponse:
            client = client_id(request.headers.get(REQUEST_ID))
            internal = request_id(client)
            if request.headers.get(RESUMABLE, "").lower() == "true":
                internal = self._owners.stream_id(internal)
            request[INTERNAL_ID] = internal
            request[TIMER] = PhaseTimer(self._clock.monotonic())
            request[IGNORED] = self._ignored()
            request[CORS] = {}
            self.answering += 1
            try:
                with answering(request.transport):
                    response = await self._answer(request, handler)
                    await self._finish(request, response)
            finally:
                self.answering -= 1
            return response

        return guard

    async def _finish(self, request: web.Request, response: web.StreamResponse) -> None:
        """Writes what is left of the answer. A client that left after [DONE] has missed nothing."""
        if not response.prepared:
            now = self._clock.monotonic()
            response.headers.update(reply_headers(request, "total", now))
            if "Upgrade" in request.headers:
                response.force_close()
        transport = request.transport
        if transport is None or transport.is_closing():
            return
        transport.set_write_buffer_limits(0)  # the end is when the kernel has everything
        with suppress(ConnectionError):
            async with taken_in_time(transport, self._config):
                writer = await response.prepare(request)
                await response.write_eof()
                if writer is not None:
                    await writer.drain()  # without chunks there is no end to write

    async def _answer(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        try:
            check_form(request, self._config.header_bytes_max)
            request[CORS] = self._origins.headers(request.headers)
            if is_preflight(request.method, request.headers):
                return web.Response(status=204, headers=preflight_headers(request.headers))
            self._identify(request)
            size = request.content_length or 0
            name = f"{request[INTERNAL_ID]} {request.method} {request.path[:96]} {size} bytes"
            return await self._handled.watch(
                name, cast("Coroutine[Any, Any, web.StreamResponse]", handler(request))
            )
        except BatonError as error:
            return error_response(error)
        except web.HTTPException as error:
            response = error_response(_translated(error, self._config.body_bytes_max))
            if "Allow" in error.headers:
                response.headers["Allow"] = error.headers["Allow"]
            return response
        except asyncio.CancelledError:
            raise
        except ConnectionError:
            return _client_gone(request)
        except Exception as error:  # noqa: BLE001 - a defect must not take the connection along
            self._log.error("request.crashed", request_id=request[INTERNAL_ID], exc_info=error)
            return error_response(BatonError(Code.INTERNAL, "internal error"))

    def _identify(self, request: web.Request) -> None:
        """Raises BatonError(INVALID_API_KEY | OPERATORS_ONLY)."""
        resource = request.match_info.route.resource
        path = resource.canonical.removeprefix(self._config.root_path) if resource else ""
        if path in OPEN:
            return
        operators = self._operators if path in OPERATORS else None
        given = request.headers.getall("Authorization", ()), request.headers.getall("x-api-key", ())
        try:
            request[CALLER] = (operators or self._authenticator).caller(*given)
        except BatonError as error:
            if operators is None or error.code is not Code.INVALID_API_KEY:
                raise
            sentence = f"{error.message}; {path} needs a key of gateway.operator_keys_file"
            raise BatonError(Code.INVALID_API_KEY, sentence) from error
        guarded = bool(self._config.keys_file) or path in ADAPTER_ORDERS
        if path in OPERATORS and operators is None and guarded:
            sentence = f"{path} needs a key of gateway.operator_keys_file, which is not set"
            raise BatonError(Code.OPERATORS_ONLY, sentence)


def error_response(error: BatonError, body: bytes | None = None) -> web.Response:
    """`body`: given where the route has an error shape of its own."""
    response = web.Response(
        body=body or error_body(error), status=error.http.status, content_type=JSON_TYPE
    )
    if error.code is Code.INVALID_API_KEY:
        response.headers["WWW-Authenticate"] = "Bearer"
    seconds = retry_after_seconds(error)
    if seconds is not None:
        response.headers["Retry-After"] = str(seconds)
    return response


def _client_gone(request: web.Request) -> web.Response:
    """Nobody reads this answer; without it aiohttp would log a traceback."""
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
