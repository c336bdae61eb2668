"""The full API over HTTP, with a stand-in behind the port: what is JSON, what are events, how a
failure looks before and after the first byte, and that what runs is ended in any case."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

from common.errors import BatonError, Code
from common.messages import Submit
from services.gateway.api.routes import POOLED, Route
from services.gateway.full_api.port import ApiRequest, EventReply, JsonReply
from services.gateway.helper.pool import HelperPool
from services.gateway.http.model_parts import ModelParts
from services.gateway.http.reply import TRACE
from tests.component.services.gateway.rig import MakeRig, Rig, delta

HELLO = [{"role": "user", "content": "hi"}]
CHAT = {"model": "m", "messages": HELLO, "tools": [{"type": "function"}]}
TRACEPARENT = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"


class Standin:
    """`events`: bytes to yield, an error to raise, or a call on the request."""

    def __init__(self) -> None:
        self.reply: JsonReply | BatonError | None = None
        self.context = 0
        self.events: list[bytes | BatonError | Callable[[ApiRequest], None]] = []
        self.requests: list[ApiRequest] = []
        self.ended: list[ApiRequest] = []

    async def answer(self, api_request: ApiRequest) -> JsonReply | EventReply:
        self.requests.append(api_request)
        if isinstance(self.reply, BatonError):
            raise self.reply
        return self.reply or EventReply(self._events(api_request))

    def set_context(self, tokens: int) -> None:
        self.context = tokens

    def end(self, api_request: ApiRequest, reason: str) -> None:
        self.ended.append(api_request)

    async def _events(self, api_request: ApiRequest) -> AsyncIterator[bytes]:
        for event in self.events:
            if isinstance(event, bytes):
                yield event
            elif isinstance(event, BatonError):
                raise event
            else:
                event(api_request)


def speaks(api_request: ApiRequest) -> None:
    api_request.has_output = True


@pytest.fixture
async def behind(make_rig: MakeRig) -> tuple[Rig, Standin]:
    rig, standin = await make_rig(text="auto"), Standin()
    rig.stand_in(standin)
    await rig.ready()
    return rig, standin


async def post(rig: Rig, path: str, body: dict[str, Any], **headers: str) -> Any:
    response = await rig.http.post(f"{rig.url}{path}", json=body, headers=headers)
    return response, await response.text()


async def test_what_the_plain_path_does_not_serve_goes_through_the_port(
    behind: tuple[Rig, Standin],
) -> None:
    rig, standin = behind
    standin.reply = JsonReply(b'{"a":1}')
    headers = {"x-deadline-ms": "900", "x-session-id": "s", "traceparent": TRACEPARENT}
    response, text = await post(rig, Route.CHAT.value, CHAT, **headers)
    assert (response.status, text) == (200, '{"a":1}')
    (api_request,) = standin.requests
    assert api_request.route is Route.CHAT
    assert json.loads(api_request.body) == CHAT
    assert (api_request.origin.deadline_ms, api_request.origin.session) == (900, "s")
    assert standin.context == 4096
    assert standin.ended == [api_request]
    assert response.headers["server-timing"].startswith("total;dur=")
    assert TRACE.fullmatch(response.headers["traceparent"])
    assert response.headers["x-request-id"] == api_request.origin.request_id


@pytest.mark.parametrize(
    "route", [one for one in Route if one not in {*POOLED, Route.CHAT, Route.COMPLETION}]
)
async def test_every_other_route_is_served(behind: tuple[Rig, Standin], route: Route) -> None:
    rig, standin = behind
    standin.reply = JsonReply(b"{}")
    response, _ = await post(rig, route.value, {})
    assert response.status == 200
    assert standin.requests[0].route is route


@pytest.mark.parametrize("route", POOLED)
async def test_a_route_of_pooling_models_is_refused(
    behind: tuple[Rig, Standin], route: Route
) -> None:
    rig, standin = behind
    response, text = await post(rig, route.value, {})
    assert response.status == 400
    assert f"is not served by {route.value}; ask it by /v1/chat/completions" in text
    assert standin.requests == []


async def test_events_are_passed_on_as_they_come(behind: tuple[Rig, Standin]) -> None:
    rig, standin = behind
    standin.events = [b"data: 0\n\n", speaks, b"data: 1\n\n", b"data: [DONE]\n\n"]
    response, text = await post(rig, Route.CHAT.value, CHAT)
    assert response.headers["content-type"].startswith("text/event-stream")
    assert response.headers["server-timing"].startswith("first-token;dur=")
    assert text == "data: 0\n\ndata: 1\n\ndata: [DONE]\n\n"
    assert standin.ended == standin.requests


@pytest.mark.parametrize("route", [Route.CHAT, Route.RESPONSES, Route.MESSAGES])
async def test_a_failure_before_the_engine_spoke_is_an_http_error(
    behind: tuple[Rig, Standin], route: Route
) -> None:
    rig, standin = behind
    busy = BatonError(Code.QUEUE_FULL, "too busy", retry_after_ms=1500)
    standin.events = [b"event: response.created\ndata: {}\n\n", busy]
    response, text = await post(rig, route.value, CHAT)
    assert response.status == 429
    assert response.headers["retry-after"] == "2"
    assert json.loads(text)["error"]["message"] == "too busy"
    assert (json.loads(text).get("type") == "error") is route.is_anthropic
    assert standin.ended == standin.requests


@pytest.mark.parametrize(
    ("route", "start"),
    [
        (Route.CHAT, 'data: {"error"'),
        (Route.RESPONSES, 'event: error\ndata: {"type":"error"'),
        (Route.MESSAGES, 'event: error\ndata: {"type":"error"'),
    ],
)
async def test_a_failure_after_it_is_an_event_and_no_done(
    behind: tuple[Rig, Standin], route: Route, start: str
) -> None:
    rig, standin = behind
    lost = BatonError(Code.WORKER_LOST, "d0 was lost")
    standin.events = [speaks, b"data: 1\n\n", lost]
    response, text = await post(rig, route.value, CHAT)
    assert response.status == 200
    assert text.removeprefix("data: 1\n\n").startswith(start)
    assert "d0 was lost" in text
    assert "[DONE]" not in text
    assert standin.ended == standin.requests


@pytest.mark.parametrize("objects", [2, 200_000])
async def test_a_bad_shape_loads_nothing(make_rig: MakeRig, objects: int) -> None:
    """The short body is checked in the gateway, the long one by a helper without vLLM."""
    rig = await make_rig(text="auto")
    await rig.ready()
    response, text = await post(rig, Route.RESPONSES.value, {"input": [{}] * objects})
    assert response.status == 400
    assert json.loads(text)["error"]["param"].startswith("input")
    parts = rig.gateway._models["m"]
    assert parts.full_api._loading is None
    assert parts._helpers.pid is None
    assert (parts._light_helpers.pid is None) == (objects == 2)


async def test_light_names_the_setting(make_rig: MakeRig) -> None:
    rig = await make_rig(text="light")
    await rig.ready()
    for path in (Route.CHAT.value, Route.TOKENIZE.value):
        response, text = await post(rig, path, CHAT)
        assert response.status == 400
        assert "gateway.text" in text


async def test_the_document_is_served(rig: Rig) -> None:
    response = await rig.http.get(f"{rig.url}/openapi.json")
    assert (await response.json())["openapi"].startswith("3.1")


def stand_in(monkeypatch: pytest.MonkeyPatch, standin: Standin) -> None:
    """For vLLM's classes, in the gateway and in its helper processes."""

    async def started(_: HelperPool) -> None: ...

    monkeypatch.setattr(ModelParts, "_loader", lambda *_: lambda: standin)
    monkeypatch.setattr(HelperPool, "start", started)
    monkeypatch.setattr(HelperPool, "begin", lambda _: None)


PLAIN = {"model": "m", "messages": HELLO, "max_tokens": 3}


@pytest.mark.parametrize("stream", [False, True])
async def test_every_chat_goes_through_the_port_where_reasoning_is_parsed(
    make_rig: MakeRig, monkeypatch: pytest.MonkeyPatch, stream: bool
) -> None:
    standin = Standin()
    standin.reply = JsonReply(b'{"a":1}')
    stand_in(monkeypatch, standin)
    rig = await make_rig(text="auto", reasoning_parser="qwen3")
    await rig.ready()
    response, text = await post(rig, Route.CHAT.value, PLAIN | {"stream": stream})
    assert (response.status, text) == (200, '{"a":1}')
    assert [api_request.route for api_request in standin.requests] == [Route.CHAT]


async def test_a_completion_has_no_reasoning_to_parse(
    make_rig: MakeRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    standin = Standin()
    stand_in(monkeypatch, standin)
    rig = await make_rig(text="auto", reasoning_parser="qwen3")
    worker = await rig.worker()
    asked = rig.ask(Route.COMPLETION.value, model="m", prompt="hi", max_tokens=1)
    submit = await rig.router.next(Submit)
    worker.send(delta(submit, 0, "x", finish_reason="length"))
    assert (await asked.response()).status == 200
    assert not standin.requests
