"""The document says what is accepted, no more and no less."""

from __future__ import annotations

import json
from typing import Any

import pytest

from services.gateway.api.request_bodies import ChatRequest, CompletionRequest
from services.gateway.api.routes import Route
from services.gateway.full_api.fields import HONOURED
from services.gateway.http.openapi import document


def bodies(*, full_api: bool) -> dict[str, Any]:
    paths = json.loads(document("1", full_api=full_api))["paths"]
    return {
        path: about["post"]["requestBody"]["content"]["application/json"]["schema"]
        for path, about in paths.items()
        if "post" in about
    }


def test_the_whole_api_names_every_honoured_field() -> None:
    described = bodies(full_api=True)
    assert set(described) == {route.value for route in Route}
    for route in Route:
        assert HONOURED[route] <= set(described[route.value]["properties"])
        assert described[route.value]["additionalProperties"] is True


def test_light_describes_the_plain_path_alone() -> None:
    described = bodies(full_api=False)
    assert set(described) == {Route.CHAT.value, Route.COMPLETION.value}
    for path, type_ in (
        (Route.CHAT.value, ChatRequest),
        (Route.COMPLETION.value, CompletionRequest),
    ):
        assert set(described[path]["properties"]) == set(type_.__struct_fields__)


@pytest.mark.parametrize("full_api", [True, False])
def test_every_reference_leads_somewhere(full_api: bool) -> None:
    text = document("1", full_api=full_api).decode()
    schemas = json.loads(text)["components"]["schemas"]
    for part in text.split('"#/components/schemas/')[1:]:
        assert part.split('"')[0] in schemas
