"""Routes about the server: models and their adapters, health, load, version, metrics, documents."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from importlib.metadata import version

import msgspec
from aiohttp import web
from aiohttp.typedefs import Handler

from common.config import GatewayConfig
from common.errors import BatonError, Code
from common.messages.parts import ADAPTER_PATH_CHARS_MAX
from common.model.adapters import why_no_name
from common.telemetry.exposition import TEXT
from services.gateway.http.app import App
from services.gateway.http.docs_page import POLICY, docs_page
from services.gateway.http.guard import CALLER, JSON_TYPE
from services.gateway.http.openapi import document
from services.gateway.http.request_form import read_body
from services.gateway.http.unserved import unserved
from services.gateway.links.adapter_asks import AdapterAsks


class AdapterOrder(msgspec.Struct):
    """A body of vLLM's routes for LoRA adapters. `model` is ours."""

    lora_name: str
    #: Folder on the workers' hosts.
    lora_path: str = ""
    load_inplace: bool = False
    #: Name of the base, where the fleet serves several models.
    model: str = ""


class AboutRoutes:
    """`metrics` makes the text of `/metrics`. `full_api`: whether it is served. `adapters`: takes
    operators' orders."""

    def __init__(
        self,
        app: App,
        config: GatewayConfig,
        metrics: Callable[[], bytes],
        *,
        full_api: bool,
        adapters: AdapterAsks,
    ) -> None:
        self._adapters = adapters
        self._app = app
        self._config = config
        self._metrics = metrics
        self._document = document(version("baton-serve"), full_api=full_api)

    def routes(self) -> Iterator[tuple[str, str, Handler]]:
        """Method, path and handler of each, those that are not served included."""
        yield "GET", "/v1/models", self._models
        yield "GET", "/v1/models/{model:.+}", self._model
        yield "POST", "/v1/load_lora_adapter", self._load_adapter
        yield "POST", "/v1/unload_lora_adapter", self._unload_adapter
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

    async def _load_adapter(self, request: web.Request) -> web.Response:
        order = await self._adapter_order(request)
        if not order.lora_path:
            raise _bad_order("lora_path", "names no folder on the workers' hosts")
        if order.load_inplace:
            raise _bad_order("load_inplace", "is not supported: unload the adapter first")
        self._app.check_adapter_name(order.lora_name)
        await self._adapters.ask(order.lora_name, order.lora_path, order.model)
        return web.Response(text=f"Success: LoRA adapter '{order.lora_name}' added successfully.")

    async def _unload_adapter(self, request: web.Request) -> web.Response:
        order = await self._adapter_order(request)
        await self._adapters.ask(order.lora_name, "", order.model)
        text = f"Success: LoRA adapter '{order.lora_name}' removed successfully."
        return web.Response(text=text)

    async def _adapter_order(self, request: web.Request) -> AdapterOrder:
        body = await read_body(request, self._config)
        try:
            order = msgspec.json.decode(body, type=AdapterOrder)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
            sentence = f"the body must be an object with lora_name, and lora_path to load: {error}"
            raise BatonError(Code.INVALID_REQUEST, sentence) from error
        fault = why_no_name(order.lora_name)
        if fault:
            raise _bad_order("lora_name", f"cannot be this: {fault}")
        if len(order.lora_path) > ADAPTER_PATH_CHARS_MAX:
            raise _bad_order("lora_path", f"has more than {ADAPTER_PATH_CHARS_MAX} characters")
        return order

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


def _bad_order(param: str, what: str) -> BatonError:
    return BatonError(Code.INVALID_REQUEST, f"{param} {what}", param=param)


def _refusing(method: str, path: str, reason: str) -> Handler:
    async def handler(_request: web.Request) -> web.StreamResponse:
        raise BatonError(Code.NOT_SERVED, f"{method} {path} is not served here: {reason}")

    return handler
