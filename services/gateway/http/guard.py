"""What every request passes on its way to a handler, and every answer on its way out.

Default-deny: a request needs a caller before its handler runs, an unmatched one too; only the
routes in `OPEN` do not. The matched route decides, never the text of the path or a header. Whatever
goes wrong leaves in OpenAI's shape.
"""

from __future__ import annotations

import asyncio

from aiohttp import web
from aiohttp.typedefs import Handler, Middleware

from common.clock import Clock
from common.config import GatewayConfig
from common.errors import BatonError, Code
from common.log import Logger
from services.gateway.api.intake import client_id, request_id
from services.gateway.api.responses import error_body, retry_after_seconds
from services.gateway.auth.authenticator import Authenticator
from services.gateway.auth.caller import Caller
from services.gateway.http.doorman import Doorman
from services.gateway.http.form import check_form
from services.gateway.http.reply import server_timing, traceparent
from services.gateway.streams.timing import Timing

REQUEST_ID = "x-request-id"
INTERNAL_ID = web.RequestKey("request_id", str)
TIMING = web.RequestKey("timing", Timing)
CALLER = web.RequestKey("caller", Caller)
OPEN = frozenset({"/health", "/live"})
SERVER = "baton"
JSON_TYPE = "application/json"


def reply_headers(request: web.Request, timing: str) -> dict[str, str]:
    """Of every answer. `timing`: what it is that lasted until now."""
    internal = request[INTERNAL_ID]
    headers = {
        "Server": SERVER,
        REQUEST_ID: client_id(request.headers.get(REQUEST_ID)) or internal,
        "Server-Timing": server_timing(timing, request[TIMING].phases()),
    }
    trace = traceparent(request.headers.get("traceparent"), internal)
    if trace is not None:
        headers["traceparent"] = trace
    return headers


class Guard:
    def __init__(
        self, config: GatewayConfig, authenticator: Authenticator, clock: Clock, log: Logger
    ) -> None:
        self._config = config
        self._authenticator = authenticator
        self._clock = clock
        self._log = log

    def middleware(self) -> Middleware:
        @web.middleware
        async def guard(request: web.Request, handler: Handler) -> web.StreamResponse:
            client = client_id(request.headers.get(REQUEST_ID))
            request[INTERNAL_ID] = request_id(client)
            request[TIMING] = Timing(self._clock.monotonic)
            doorman = _doorman(request)
            if doorman is not None:
                doorman.begin()
            try:
                response = await self._answer(request, handler)
            finally:
                if doorman is not None:
                    doorman.end()
            if not response.prepared:
                response.headers.update(reply_headers(request, "total"))
                if "Upgrade" in request.headers:
                    response.force_close()
            return response

        return guard

    async def _answer(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        try:
            check_form(request, self._config.header_bytes_max)
            self._identify(request)
            return await handler(request)
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
            return _gone(request)
        except Exception as error:  # noqa: BLE001 - a defect must not take the connection along
            self._log.error("request.crashed", request_id=request[INTERNAL_ID], exc_info=error)
            return error_response(BatonError(Code.INTERNAL, "internal error"))

    def _identify(self, request: web.Request) -> None:
        """Raises BatonError(INVALID_API_KEY)."""
        resource = request.match_info.route.resource
        if resource is None or resource.canonical not in OPEN:
            headers = request.headers
            request[CALLER] = self._authenticator.caller(
                headers.getall("Authorization", ()), headers.getall("x-api-key", ())
            )


def _doorman(request: web.Request) -> Doorman | None:
    """None when the connection is already gone."""
    transport = request.transport
    protocol = transport.get_protocol() if transport is not None else None
    return protocol if isinstance(protocol, Doorman) else None


def error_response(error: BatonError, body: bytes | None = None) -> web.Response:
    """`body`: where the route has a shape of its own for errors."""
    response = web.Response(
        body=body or error_body(error), status=error.face.http_status, content_type=JSON_TYPE
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
