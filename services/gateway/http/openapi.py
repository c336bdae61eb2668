"""The OpenAPI document, made from the tables and types that requests are checked with.

Fields that the plain path honours have their exact types and ranges. Fields that only the full API
honours are named without a type, because vLLM's models check them. Refused fields are left out.
Others are allowed, and have no effect unless `[gateway] unknown_fields` refuses them.
"""

from __future__ import annotations

from typing import Any

import msgspec

from services.gateway.api.request_bodies import ChatRequest, CompletionRequest
from services.gateway.api.routes import RERANKS, Route
from services.gateway.full_api.fields import HONOURED

REFERENCE = "#/components/schemas/{name}"
JSON_TYPE = "application/json"
PLAIN: dict[Route, Any] = {Route.CHAT: ChatRequest, Route.COMPLETION: CompletionRequest}
REQUIRED: dict[Route, list[str]] = {
    Route.RESPONSES: ["input"],
    Route.BATCH: ["messages"],
    Route.MESSAGES: ["model", "messages", "max_tokens"],
    Route.COUNT_TOKENS: ["model", "messages"],
    Route.TOKENIZE: [],
    Route.DETOKENIZE: ["tokens"],
    Route.EMBEDDINGS: ["input"],
    Route.CLASSIFY: ["input"],
    Route.POOLING: ["input"],
    **{route: ["query", "documents"] for route in RERANKS},
}
TYPES: dict[str, Any] = {
    "model": {"type": "string"},
    "messages": {"type": "array", "items": {"type": "object"}, "minItems": 1},
    "max_tokens": {"type": "integer", "minimum": 1},
    "tokens": {"type": "array", "items": {"type": "integer", "minimum": 0}},
    "stream": {"type": "boolean"},
    "n": {"type": "integer", "minimum": 1},
    "tools": {"type": "array", "items": {"type": "object"}},
    "logprobs": {"type": ["boolean", "integer", "null"]},
    "top_logprobs": {"type": ["integer", "null"], "minimum": 0, "maximum": 20},
}
ANSWERS = {
    "200": "JSON, or server-sent events where `stream` is true",
    "400": "the request is wrong; `error.param` names the field",
    "401": "no valid API key",
    "403": "the origin of this page is not listed",
    "404": "no such model or stream",
    "408": "the body did not come in time",
    "409": "the stream has no event with this number",
    "410": "the stream, or its events up to this number, are no longer kept",
    "413": "the body is too large",
    "415": "the body's type is not JSON",
    "429": "over a limit, or too busy; see Retry-After",
    "431": "the headers are too large",
    "500": "a worker failed",
    "503": "the fleet cannot serve now; see Retry-After",
    "504": "the deadline passed",
}


def document(version: str, *, full_api: bool) -> bytes:
    """`full_api`: whether it is served."""
    _, components = msgspec.json.schema_components(PLAIN.values(), ref_template=REFERENCE)
    routes = list(Route) if full_api else list(PLAIN)
    bodies = {route: _body(route, components, full_api=full_api) for route in routes}
    schemas = {name: part for name, part in components.items() if not name.endswith("Request")}
    paths: dict[str, Any] = {route.value: _post(body) for route, body in bodies.items()}
    paths["/v1/models"] = _get()
    paths["/v1/models/{model}"] = _get("model")
    paths["/v1/streams/{id}"] = _get("id")
    for path in ("/health", "/live", "/ping", "/version", "/load"):
        paths[path] = _get()
    return msgspec.json.encode(
        {
            "openapi": "3.1.0",
            "info": {"title": "Baton", "version": version},
            "paths": paths,
            "components": {
                "schemas": schemas,
                "securitySchemes": {"key": {"type": "http", "scheme": "bearer"}},
            },
        }
    )


def _body(route: Route, components: dict[str, Any], *, full_api: bool) -> dict[str, Any]:
    plain = PLAIN.get(route)
    known = components[plain.__name__] if plain is not None else {}
    properties = dict(known.get("properties", {}))
    if full_api:
        for name in sorted(HONOURED[route] - set(properties)):
            properties[name] = TYPES.get(name, {})
    return {
        "type": "object",
        "properties": properties,
        "required": known.get("required", REQUIRED.get(route, [])),
        "additionalProperties": True,
    }


def _post(body: dict[str, Any]) -> dict[str, Any]:
    content = {JSON_TYPE: {"schema": body}}
    return {
        "post": {"requestBody": {"required": True, "content": content}, "responses": _answers()}
    }


def _get(parameter: str = "") -> dict[str, Any]:
    described: dict[str, Any] = {"responses": _answers()}
    if parameter:
        about = {"name": parameter, "in": "path", "required": True, "schema": {"type": "string"}}
        described["parameters"] = [about]
    return {"get": described}


def _answers() -> dict[str, Any]:
    return {status: {"description": meaning} for status, meaning in ANSWERS.items()}
