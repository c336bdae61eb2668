"""What a client hears of where its time went: always in a header, in the answer when it asks."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from typing import Any

import aiohttp
import pytest

from common.messages import Sampling, Submit
from services.gateway.api.kinds import Kind, RequestSpec
from services.gateway.api.routes import Route
from services.gateway.full_api.port import ApiRequest, EventReply, JsonReply
from services.gateway.streams.journal import Journal
from tests.component.services.gateway.rig import BackgroundRequest, MakeRig, Rig, all_events, delta

PHASES = ["intake_ms", "queue_ms", "prompt_ms", "predicted_ms"]
SPOKEN = ["intake", "queue", "prefill", "decode"]


def durations(response: aiohttp.ClientResponse) -> dict[str, float]:
    """By name, in the header's order."""
    parts = response.headers["server-timing"].split(", ")
    return {name: float(ms) for name, ms in (part.split(";dur=") for part in parts)}


def check_header(response: aiohttp.ClientResponse, name: str) -> None:
    found = durations(response)
    assert list(found) == [name, *SPOKEN]
    assert sum(found[phase] for phase in SPOKEN) == pytest.approx(found[name], abs=0.03)


def check_timings(timings: dict[str, Any], *, predicted: int) -> None:
    assert sum(timings[name] for name in PHASES) == pytest.approx(timings["total_ms"])
    assert all(timings[name] > 0 for name in PHASES)
    assert timings["predicted_n"] == predicted


async def answered(rig: Rig, path: str, **about: Any) -> aiohttp.ClientResponse:
    """Two tokens, in two steps."""
    worker = await rig.worker()
    body, headers = {"model": "m"} | about, {"x-timings": "1"}
    posted = BackgroundRequest(
        rig.tasks, rig.http.post(f"{rig.url}{path}", json=body, headers=headers)
    )
    submit = await rig.router.next(Submit)
    worker.send(delta(submit, 0, "x", cached_tokens=1))
    worker.send(delta(submit, 1, "y", finish_reason="length"))
    return await posted.response()


async def test_a_whole_answer(rig: Rig) -> None:
    response = await answered(rig, "/v1/completions", prompt="ab", max_tokens=2)
    check_header(response, "total")
    timings = (await response.json())["timings"]
    check_timings(timings, predicted=2)
    assert (timings["prompt_n"], timings["cache_n"]) == (1, 1)


async def test_a_stream_tells_before_it_is_done(rig: Rig) -> None:
    options = {"include_usage": True}
    response = await answered(
        rig, "/v1/completions", prompt="ab", max_tokens=2, stream=True, stream_options=options
    )
    check_header(response, "first-token")
    *_, usage, timings, done = await all_events(response)
    assert (usage["usage"]["completion_tokens"], done) == (2, "[DONE]")
    assert timings["choices"] == []
    check_timings(timings["timings"], predicted=2)


async def test_nobody_is_told_who_does_not_ask(rig: Rig) -> None:
    worker = await rig.worker()
    for headers in ({}, {"x-timings": "0"}):
        body = {"model": "m", "prompt": "ab", "max_tokens": 1}
        url = f"{rig.url}/v1/completions"
        posted = BackgroundRequest(rig.tasks, rig.http.post(url, json=body, headers=headers))
        worker.send(delta(await rig.router.next(Submit), 0, "x", finish_reason="length"))
        response = await posted.response()
        assert "timings" not in await response.json()
        check_header(response, "total")


async def test_what_generates_nothing_has_no_phases(rig: Rig) -> None:
    async with rig.http.get(f"{rig.url}/live") as response:
        assert list(durations(response)) == ["total"]
    await rig.ready()
    body = {"model": "m", "prompt": "ab"}
    async with rig.http.post(
        f"{rig.url}/v1/completions", json=body, headers={"x-timings": "yes"}
    ) as response:
        assert response.status == 400
        assert (await response.json())["error"]["param"] == "x-timings"


class Standin:
    """vLLM's serving code, as far as it matters here: it makes one call of three tokens."""

    def __init__(self, answer: list[bytes]) -> None:
        self._answer = answer

    async def answer(self, api_request: ApiRequest) -> JsonReply | EventReply:
        api_request.specs.append(
            RequestSpec(Kind.CHAT, "r", "m", 0, [1, 2], Sampling(max_tokens=9))
        )
        journal = Journal([1, 2], 9)
        journal.accept(1, 0, [7, 8, 9])
        journal.take_prefill_count(2)
        api_request.journals.append(journal)
        if len(self._answer) == 1:
            return JsonReply(self._answer[0])
        return EventReply(self._events(api_request))

    def set_context(self, tokens: int) -> None: ...

    def end(self, api_request: ApiRequest, reason: str) -> None: ...

    async def _events(self, api_request: ApiRequest) -> AsyncIterator[bytes]:
        api_request.has_output = True
        for event in self._answer:
            yield event


async def answer_text(make_rig: MakeRig, route: Route, *answer: bytes) -> str:
    rig, standin = await make_rig(text="auto"), Standin(list(answer))
    rig.stand_in(standin)
    await rig.ready()
    body = {"model": "m", "tools": [{"type": "function"}]}
    url = f"{rig.url}{route.value}"
    async with rig.http.post(url, json=body, headers={"x-timings": "1"}) as response:
        assert response.status == 200
        return await response.text()


def check_counts(timings: dict[str, Any]) -> None:
    assert (timings["prompt_n"], timings["cache_n"], timings["predicted_n"]) == (0, 2, 3)
    assert sum(timings[name] for name in PHASES) == pytest.approx(timings["total_ms"])


async def test_an_answer_of_vllms_code_is_told_in_json(make_rig: MakeRig) -> None:
    body = json.loads(await answer_text(make_rig, Route.RESPONSES, b'{"a":1}'))
    check_counts(body.pop("timings"))
    assert body == {"a": 1}


async def test_a_stream_of_chunks_is_told_before_done(make_rig: MakeRig) -> None:
    text = await answer_text(make_rig, Route.CHAT, b"data: 0\n\n", b"data: [DONE]\n\n")
    first, chunk, done, _ = text.split("\n\n")
    assert (first, done) == ("data: 0", "data: [DONE]")
    body = json.loads(chunk.removeprefix("data: "))
    assert body["object"] == "chat.completion.chunk"
    assert body["id"].startswith("chatcmpl-")
    assert (body["model"], body["choices"]) == ("m", [])
    check_counts(body["timings"])


async def test_a_stream_of_typed_events_is_told_at_its_end(make_rig: MakeRig) -> None:
    text = await answer_text(make_rig, Route.MESSAGES, b"event: a\n\n", b"event: b\n\n")
    assert text.startswith("event: a\n\nevent: b\n\nevent: baton.timings\ndata: ")
    event = json.loads(text.rsplit("data: ", 1)[1])
    assert event["type"] == "baton.timings"
    check_counts(event["timings"])
