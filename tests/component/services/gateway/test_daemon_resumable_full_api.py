"""Streams of the full API outlive their connection too; a stand-in makes them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import aiohttp
import pytest

from common.errors import BatonError, Code
from services.gateway.full_api.port import ApiRequest, EventReply, JsonReply
from tests.component.services.gateway.rig import BackgroundRequest, MakeRig, Rig
from tests.rigs.peers import WAIT_SECONDS

CHAT = {
    "model": "m",
    "messages": [{"role": "user", "content": "hi"}],
    "tools": [{"type": "function"}],
    "stream": True,
}
ON = {"x-resumable": "true"}
EVENTS = [f"data: {name}\n\n".encode() for name in "abc"]


class Slow:
    """Says `a`, and the rest once `go` is set: events, or the exception that comes instead."""

    def __init__(self) -> None:
        self.go = asyncio.Event()
        self.rest: list[bytes | Exception] = [*EVENTS[1:]]
        self.ended = asyncio.Event()
        self.refusal: BatonError | None = None
        self.asked: list[ApiRequest] = []

    async def answer(self, api_request: ApiRequest) -> JsonReply | EventReply:
        self.asked.append(api_request)
        if self.refusal is not None:
            raise self.refusal
        return EventReply(self._events(api_request))

    def set_context(self, tokens: int) -> None: ...

    def end(self, _api_request: ApiRequest, _reason: str) -> None:
        self.ended.set()

    async def _events(self, api_request: ApiRequest) -> AsyncIterator[bytes]:
        api_request.has_output = True
        yield EVENTS[0]
        await self.go.wait()
        for event in self.rest:
            if isinstance(event, Exception):
                raise event
            yield event


async def rig_with(make_rig: MakeRig, slow: Slow, **gateway: float) -> Rig:
    rig = await make_rig(text="auto", **gateway)
    rig.stand_in(slow)
    await rig.ready()
    return rig


async def begun(rig: Rig) -> aiohttp.ClientResponse:
    """It has said `a`."""
    posted = BackgroundRequest(
        rig.tasks, rig.http.post(f"{rig.url}/v1/chat/completions", json=CHAT, headers=ON)
    )
    response = await posted.response()
    assert await response.content.readuntil(b"\n\n") == b"id: 1\ndata: a\n\n"
    return response


async def again(rig: Rig, stream: str, last: int) -> aiohttp.ClientResponse:
    headers = {"Last-Event-ID": str(last)}
    return await rig.http.get(f"{rig.url}/v1/streams/{stream}", headers=headers)


async def test_it_goes_on_without_its_client(make_rig: MakeRig) -> None:
    slow = Slow()
    rig = await rig_with(make_rig, slow)
    response = await begun(rig)
    response.close()
    slow.go.set()
    async with asyncio.timeout(WAIT_SECONDS):
        await slow.ended.wait()
    back = await again(rig, response.headers["x-stream-id"], 1)
    assert await back.content.read() == b"id: 2\ndata: b\n\nid: 3\ndata: c\n\n"


async def test_a_client_that_leaves_before_its_generation_begins_is_known_to_be_gone(
    make_rig: MakeRig,
) -> None:
    """Otherwise the router would take the stream for one that somebody reads."""
    slow = Slow()
    rig = await rig_with(make_rig, slow)
    response = await begun(rig)
    assert slow.asked[0].is_attended()
    response.close()
    async with asyncio.timeout(WAIT_SECONDS):
        while slow.asked[0].is_attended():
            await rig.turn()
    back = await again(rig, response.headers["x-stream-id"], 1)
    assert slow.asked[0].is_attended()
    back.close()


async def test_what_nobody_comes_back_to_is_ended(make_rig: MakeRig) -> None:
    slow = Slow()
    rig = await rig_with(make_rig, slow, resume_ms=200)
    response = await begun(rig)
    response.close()
    async with asyncio.timeout(WAIT_SECONDS):
        await slow.ended.wait()
    assert (await again(rig, response.headers["x-stream-id"], 1)).status == 410


@pytest.mark.parametrize(
    ("failure", "says"),
    [
        (BatonError(Code.WORKER_LOST, "d0 is lost"), b"d0 is lost"),
        (RuntimeError("secret"), b"internal error"),
    ],
)
async def test_a_failure_is_an_event_and_no_end(
    make_rig: MakeRig, failure: Exception, says: bytes
) -> None:
    slow = Slow()
    slow.rest = [failure]
    rig = await rig_with(make_rig, slow)
    response = await begun(rig)
    slow.go.set()
    rest = await response.content.read()
    assert rest.startswith(b'id: 2\ndata: {"error"')
    assert says in rest
    assert b"secret" not in rest
    assert not rig.tasks.failed.done()


async def test_a_refusal_is_an_ordinary_error(make_rig: MakeRig) -> None:
    slow = Slow()
    slow.refusal = BatonError(Code.INVALID_REQUEST, "no such tool")
    rig = await rig_with(make_rig, slow)
    response = await rig.http.post(f"{rig.url}/v1/chat/completions", json=CHAT, headers=ON)
    assert response.status == 400
    assert "no such tool" in await response.text()


async def test_a_gateway_that_stops_ends_it(make_rig: MakeRig) -> None:
    slow = Slow()
    rig = await rig_with(make_rig, slow)
    response = await begun(rig)
    response.close()
    await rig.gateway.stop()
    assert slow.ended.is_set()
