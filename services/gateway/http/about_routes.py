"""Routes that tell about the server: models, health, load, version, metrics, documents."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from importlib.metadata import version

from aiohttp import web
from aiohttp.typedefs import Handler

from common.config import GatewayConfig
from common.errors import BatonError, Code
from common.telemetry.exposition import TEXT
from services.gateway.http.app import App
from services.gateway.http.docs_page import POLICY, docs_page
from services.gateway.http.guard import CALLER, JSON_TYPE
from services.gateway.http.openapi import document
from services.gateway.http.unserved import unserved


class AboutRoutes:
    """`metrics` makes the text of `/metrics`. `full_api`: whether it is served."""

    def __init__(
        self, app: App, config: GatewayConfig, metrics: Callable[[], bytes], *, full_api: bool
    ) -> None:
        self._app = app
        self._config = config
        self._metrics = metrics
        self._document = document(version("baton-serve"), full_api=full_api)

    def routes(self) -> Iterator[tuple[str, str, Handler]]:
        """Method, path and handler of each, those that are not served included."""
        yield "GET", "/v1/models", self._models
        yield "GET", "/v1/models/{model:.+}", self._model
        yield "GET", "/openapi.json", self._openapi
        yield "GET", "/docs", self._docs
        yield "GET", "/health", self._health
        yield "GET", "/ping", self._health
        yield "POST", "/ping", self._health
        yield "GET", "/live", self._live
        yield "GET", "/version", self._version
        yield "GET", "/load", self._load
        yield "GET", "/metrics", self._exposition
        for method, path, reason in unserved():
            yield method, path, _refusing(method, path, reason)

    async def _models(self, request: web.Request) -> web.Response:
        return web.json_response({"object": "list", "data": self._app.cards(request[CALLER])})

    async def _model(self, request: web.Request) -> web.Response:
        name = request.match_info["model"]
        return web.json_response(self._app.card(name, request[CALLER]))

    async def _openapi(self, _request: web.Request) -> web.Response:
        return web.Response(body=self._document, content_type=JSON_TYPE)

    async def _docs(self, _request: web.Request) -> web.Response:
        headers = {"Content-Security-Policy": POLICY, "Content-Type": "text/html; charset=utf-8"}
        return web.Response(body=docs_page(self._document), headers=headers)

    async def _health(self, _request: web.Request) -> web.Response:
        health = self._app.health()
        if health.ready:
            return web.json_response({"status": "ready"})
        body = {"status": "unavailable", "reason": health.reason}
        return web.json_response(body, status=503, headers={"Retry-After": "1"})

    async def _live(self, _request: web.Request) -> web.Response:
        return web.json_response({"status": "live"})

    async def _version(self, _request: web.Request) -> web.Response:
        return web.json_response({"version": version("baton-serve")})

    async def _load(self, _request: web.Request) -> web.Response:
        """vLLM's field."""
        return web.json_response({"server_load": self._app.load})

    async def _exposition(self, _request: web.Request) -> web.Response:
        """Raises BatonError(NOT_SERVED) where each of several processes would show its own."""
        processes = self._config.processes
        if processes > 1:
            sentence = f"{processes} gateway processes share this port; the health daemon's "
            raise BatonError(Code.NOT_SERVED, f"{sentence}/metrics has those of all")
        return web.Response(body=self._metrics(), headers={"Content-Type": TEXT})


def _refusing(method: str, path: str, reason: str) -> Handler:
    async def handler(_request: web.Request) -> web.StreamResponse:
        raise BatonError(Code.NOT_SERVED, f"{method} {path} is not served here: {reason}")

    return handler
