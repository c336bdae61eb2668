"""Answers of the full API whose clients take them late, slowly or never, and a gateway that stops
meanwhile. A stand-in makes them, as a helper process would: the core knows nothing of them."""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import AsyncIterator

import pytest

from common.errors import BatonError, Code
from common.messages import Leaving, Submit
from services.gateway.full_api.port import ApiRequest, EventReply, JsonReply
from services.gateway.http import server
from tests.component.services.gateway.raw import RawClient, eventually
from tests.component.services.gateway.rig import MakeRig, Rig, delta
from tests.rigs.peers import WAIT_SECONDS

CHAT = {
    "model": "m",
    "messages": [{"role": "user", "content": "hi"}],
    "tools": [{"type": "function"}],
}
BODY = json.dumps(CHAT).encode()
REQUEST = (
    b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
    b"Content-Length: %d\r\n\r\n%b" % (len(BODY), BODY)
)
#: More than the buffers of both kernels and of the transport take.
LARGE = bytes(8 << 20)


class Standin:
    """Answers once `go` is set: with JSON, or with events of which the last may be an error."""

    def __init__(self) -> None:
        self.go = asyncio.Event()
        self.asked = asyncio.Event()
        self.body = b"{}"
        self.events: list[bytes | BatonError] = []

    async def answer(self, api_request: ApiRequest) -> JsonReply | EventReply:
        self.asked.set()
        await self.go.wait()
        return EventReply(self._events(api_request)) if self.events else JsonReply(self.body)

    def set_context(self, tokens: int) -> None: ...

    def end(self, _api_request: ApiRequest, _reason: str) -> None: ...

    async def _events(self, api_request: ApiRequest) -> AsyncIterator[bytes]:
        api_request.has_output = True
        for event in self.events:
            if isinstance(event, BatonError):
                raise event
            yield event


async def behind(make_rig: MakeRig, standin: Standin, **about: float) -> Rig:
    rig = await make_rig(text="auto", **about)
    rig.stand_in(standin)
    await rig.ready()
    return rig


async def asked(rig: Rig) -> RawClient:
    client = await RawClient.open(rig)
    client.send(REQUEST)
    return client


def open_transports(rig: Rig) -> list[asyncio.WriteTransport]:
    """The gateway's side of its connections."""
    site = rig.gateway._http._runner.server
    assert site is not None
    transports = [connection.transport for connection in site.connections]
    return [found for found in transports if found is not None and not found.is_closing()]


async def rest(client: RawClient) -> bytes:
    async with asyncio.timeout(WAIT_SECONDS):
        return await client.reader.read()


@pytest.mark.parametrize("size", [2, len(LARGE)])
async def test_a_gateway_that_stops_waits_for_an_answer_that_is_made_or_sent(
    make_rig: MakeRig, monkeypatch: pytest.MonkeyPatch, size: int
) -> None:
    """The short one is still made when the drain begins, the long one is being sent."""
    monkeypatch.setattr(server, "SHUTDOWN_SECONDS", 0.0)
    standin = Standin()
    standin.body = LARGE[:size]
    rig = await behind(make_rig, standin, drain_ms=1_000 * WAIT_SECONDS)
    client = await asked(rig)
    await standin.asked.wait()
    if size == len(LARGE):
        standin.go.set()
        assert await client.status() == 200
    stopping = rig.tasks.start("stop", rig.gateway.stop(), ends=True)
    await rig.router.next(Leaving)
    await rig.turn()
    if not standin.go.is_set():
        standin.go.set()
        assert await client.status() == 200
    assert len(await rest(client)) == size
    await stopping


async def test_one_that_is_not_taken_in_the_drains_time_is_cut(make_rig: MakeRig) -> None:
    standin = Standin()
    rig = await behind(make_rig, standin, drain_ms=50)
    client = await asked(rig)
    await standin.asked.wait()
    await rig.gateway.stop()
    assert await client.closed()


FAILURE = BatonError(Code.WORKER_LOST, "d0 was lost")


@pytest.mark.parametrize(
    "events",
    [
        [],
        [LARGE],
        [LARGE, FAILURE],
        [bytes(200 << 10)] * 20 + [FAILURE],
    ],
    ids=["json", "last event", "error", "events"],
)
async def test_a_client_that_never_reads_is_cut(
    make_rig: MakeRig, events: list[bytes | BatonError], caplog: pytest.LogCaptureFixture
) -> None:
    standin = Standin()
    standin.events, standin.body = events, LARGE
    standin.go.set()
    rig = await behind(make_rig, standin, slow_client_ms_max=100)
    await rig.http.close()
    client = await asked(rig)
    await standin.asked.wait()
    await eventually(lambda: rig.gateway.connection_limits.connections == 0)
    with pytest.raises(ConnectionError):
        await rest(client)
    assert [record for record in caplog.records if record.levelname == "ERROR"] == []
    assert not rig.tasks.failed.done()


@pytest.mark.parametrize("version", [b"1.0", b"1.1"])
async def test_one_of_a_plain_stream_that_has_ended_is_cut(
    make_rig: MakeRig, version: bytes
) -> None:
    """Its text is one message: what of it the kernels do not take is left when it has ended."""
    rig = await make_rig(max_model_len=1_000_000_000, slow_client_ms_max=100)
    worker = await rig.worker()
    await rig.http.close()
    body = b'{"model": "m", "prompt": "ab", "stream": true, "max_tokens": 100000000}'
    client = socket.socket()
    client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 16)
    client.connect(rig.gateway.http_address)
    client.sendall(
        b"POST /v1/completions HTTP/%b\r\nHost: x\r\nContent-Type: application/json\r\n"
        b"Content-Length: %d\r\n\r\n%b" % (version, len(body), body)
    )
    submit = await rig.router.next(Submit)
    (transport,) = open_transports(rig)
    transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 16)
    worker.send(delta(submit, 0, "a" * 1_000_000, finish_reason="length"))
    await eventually(lambda: not rig.gateway.core.active)
    assert rig.gateway.connection_limits.connections == 1
    await eventually(lambda: rig.gateway.connection_limits.connections == 0)
    client.close()


async def test_a_small_rest_that_is_not_taken_is_no_reason_to_stay(make_rig: MakeRig) -> None:
    """It waits in the gateway itself, below the size at which a writer is told to wait. Of the
    first answers the kernels take all."""
    standin = Standin()
    standin.go.set()
    rig = await behind(make_rig, standin, slow_client_ms_max=100)
    await rig.http.close()
    clients = []
    for size in range(64 << 10, 576 << 10, 32 << 10):
        standin.asked.clear()
        standin.body = LARGE[:size]
        clients.append(socket.create_connection(rig.gateway.http_address))
        clients[-1].sendall(REQUEST)
        await standin.asked.wait()
    await eventually(lambda: not rig.gateway._http.answering)
    kept = open_transports(rig)
    unsent = [transport.get_write_buffer_size() for transport in kept]
    assert 0 < len(unsent) < len(clients)
    assert not any(unsent)
    for client in clients:
        client.close()


async def test_a_client_that_takes_something_all_the_time_may_take_longer(
    make_rig: MakeRig,
) -> None:
    standin = Standin()
    standin.body = LARGE
    standin.go.set()
    rig = await behind(make_rig, standin, slow_client_ms_max=500)
    client = await asked(rig)
    assert await client.status() == 200
    for _ in range(12):
        await client.reader.readexactly(256 << 10)
        await asyncio.sleep(0.1)  # its pace
    await client.reader.readexactly(len(LARGE) - 12 * (256 << 10))
    client.close()
