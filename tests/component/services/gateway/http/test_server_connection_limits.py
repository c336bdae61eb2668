"""Connections: how many, and how long without a request."""

from __future__ import annotations

import asyncio

import pytest

from common.messages import Submit
from common.net import connection_limits
from tests.component.services.gateway.raw import RawClient, eventually, until
from tests.component.services.gateway.rig import MakeRig, Rig, all_events, delta
from tests.rigs.peers import WAIT_SECONDS

HEAD = b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
LIVE = b"GET /live HTTP/1.1\r\nHost: x\r\n\r\n"


async def drip(clients: list[RawClient], gap_seconds: float) -> None:
    """A byte of a header that never ends, to each, again and again."""
    while True:
        for client in clients:
            client.send(b"a")
        await asyncio.sleep(gap_seconds)


async def test_300_slowloris_connections_harm_no_stream_and_are_ended(make_rig: MakeRig) -> None:
    rig = await make_rig(header_ms_max=3_000)
    worker = await rig.worker()
    posted = rig.ask("/v1/completions", model="m", prompt="p", max_tokens=200, stream=True)
    submit = await rig.router.next(Submit)
    slow = [await RawClient.open(rig) for _ in range(300)]
    for client in slow:
        client.send(HEAD + b"X-Slow: ")
    dripping = rig.tasks.start("drip", drip(slow, 0.05), ends=True)
    limits = rig.gateway.connection_limits
    await until(rig, lambda: limits.connections + limits.timed_out >= 300)
    for index in range(199):
        worker.send(delta(submit, index, "a"))
    response = await posted.response()
    assert all([await client.closed() for client in slow])
    dripping.cancel()
    assert rig.gateway.connection_limits.timed_out == 300
    worker.send(delta(submit, 199, "b", finish_reason="length"))
    events = await all_events(response)
    assert "".join(e["choices"][0]["text"] for e in events[:-1]) == "a" * 199 + "b"
    assert events[-1] == "[DONE]"


async def test_a_connection_that_says_nothing_is_ended(make_rig: MakeRig) -> None:
    rig = await make_rig(header_ms_max=50)
    assert await (await RawClient.open(rig)).closed()
    assert rig.gateway.connection_limits.timed_out == 1


async def test_the_next_requests_head_has_the_same_limit(make_rig: MakeRig) -> None:
    rig = await make_rig(header_ms_max=400)
    client = await RawClient.open(rig)
    client.send(LIVE)
    assert await client.status() == 200
    client.send(HEAD)
    assert await client.closed()
    assert rig.gateway.connection_limits.timed_out == 1


async def test_a_kept_connection_may_rest_longer_than_a_head_takes(make_rig: MakeRig) -> None:
    rig = await make_rig(header_ms_max=400, idle_ms_max=60_000)
    client = await RawClient.open(rig)
    for _ in range(2):
        client.send(LIVE)
        assert await client.status() == 200
        await client.reader.readexactly(len(b'{"status": "live"}'))
        await _a_head_would_be_late(rig)
    assert rig.gateway.connection_limits.timed_out == 2
    client.close()


async def test_an_idle_connection_is_ended(make_rig: MakeRig) -> None:
    rig = await make_rig(idle_ms_max=50)
    client = await RawClient.open(rig)
    client.send(LIVE)
    assert await client.status() == 200
    assert await client.closed()


async def test_a_body_that_does_not_come_is_408(make_rig: MakeRig) -> None:
    rig = await make_rig(body_ms_max=50)
    client = await RawClient.open(rig)
    client.send(HEAD + b"Content-Length: 10\r\n\r\n{")
    assert await client.status() == 408
    client.close()


async def test_a_long_answer_is_not_cut_by_the_header_clock(make_rig: MakeRig) -> None:
    rig = await make_rig(header_ms_max=400)
    worker = await rig.worker()
    posted = rig.ask("/v1/completions", model="m", prompt="p", max_tokens=2)
    submit = await rig.router.next(Submit)
    await _a_head_would_be_late(rig)
    worker.send(delta(submit, 0, "ab", finish_reason="length"))
    assert (await posted.response()).status == 200


async def test_a_refused_client_that_still_sends_its_request_gets_the_answer(
    make_rig: MakeRig,
) -> None:
    """Closed at once, the connection would be reset and the answer lost."""
    rig = await make_rig(connections_max=1)
    held = await RawClient.open(rig)
    await _counted(rig, 1)
    over = await RawClient.open(rig)
    await eventually(lambda: rig.gateway.connection_limits.refused == 1)
    for _ in range(16):
        over.send(HEAD + b"X-More: " + b"a" * 65_536)
        await over.writer.drain()
        await asyncio.sleep(0)
    assert await over.status() == 503
    over.close()
    held.close()


async def test_a_refused_client_that_never_leaves_is_ended(
    make_rig: MakeRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connection_limits, "LEAVING_SECONDS", 0.05)
    rig = await make_rig(connections_max=1)
    held = await RawClient.open(rig)
    await _counted(rig, 1)
    over = await RawClient.open(rig)
    over.send(LIVE)
    assert await over.status() == 503
    await eventually(lambda: not rig.gateway.connection_limits.leaving)
    held.close()


async def test_a_refused_client_sees_the_end_at_once(
    make_rig: MakeRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connection_limits, "LEAVING_SECONDS", 10 * WAIT_SECONDS)
    rig = await make_rig(connections_max=1)
    held = await RawClient.open(rig)
    await _counted(rig, 1)
    over = await RawClient.open(rig)
    assert await over.closed()
    over.close()
    held.close()


class PlayedTransport(asyncio.Transport):
    aborted = False

    def abort(self) -> None:
        self.aborted = True


def test_each_refusal_over_the_limit_ends_another_one() -> None:
    """The end of a connection is reported later than at once."""
    limits = connection_limits.ConnectionLimits(9, 0, 1.0, 9)
    limits._leaving_max = 2
    transports = [PlayedTransport() for _ in range(4)]
    for transport in transports:
        limits.stay(transport)
    assert [transport.aborted for transport in transports] == [True, True, False, False]


async def test_of_refused_clients_that_stay_the_oldest_is_ended_first(make_rig: MakeRig) -> None:
    rig = await make_rig(connections_max=1)
    held = await RawClient.open(rig)
    await _counted(rig, 1)
    limits = rig.gateway.connection_limits
    limits._leaving_max = 2
    over = [await RawClient.open(rig) for _ in range(2)]
    await eventually(lambda: limits.leaving == 2)
    over.append(await RawClient.open(rig))
    await eventually(lambda: limits.refused == 3)
    assert limits.leaving == 2
    for client in over[1:]:
        client.send(LIVE)
        assert await client.status() == 503
        client.close()
    await eventually(lambda: not limits.leaving)
    held.close()
    over[0].close()


async def test_over_the_limit_of_connections(make_rig: MakeRig) -> None:
    rig = await make_rig(connections_max=3)
    held = [await RawClient.open(rig) for _ in range(3)]
    await _counted(rig, 3)
    over = await RawClient.open(rig)
    assert await over.status() == 503
    assert await over.closed()
    held.pop().close()
    await _counted(rig, 2)
    again = await RawClient.open(rig)
    again.send(LIVE)
    assert await again.status() == 200
    for client in [*held, again]:
        client.close()


async def test_over_the_limit_of_one_address(make_rig: MakeRig) -> None:
    rig = await make_rig(connections_per_ip_max=2)
    held = [await RawClient.open(rig) for _ in range(2)]
    await _counted(rig, 2)
    assert await (await RawClient.open(rig)).status() == 429
    host, port = rig.gateway.http_address
    other = RawClient(*await asyncio.open_connection(host, port, local_addr=("127.0.0.2", 0)))
    other.send(LIVE)
    assert await other.status() == 200
    for client in [*held, other]:
        client.close()


async def _counted(rig: Rig, connections: int) -> None:
    async with asyncio.timeout(10):
        while rig.gateway.connection_limits.connections != connections:  # noqa: ASYNC110 - it calls nobody
            await asyncio.sleep(0)


async def _a_head_would_be_late(rig: Rig) -> None:
    """A connection that is opened now and says nothing is ended, so that a clock which had been
    running for another one would have ended that, too."""
    assert await (await RawClient.open(rig)).closed()


async def test_the_unix_socket_has_the_same_limits_but_no_address(make_rig: MakeRig) -> None:
    rig = await make_rig(connections_max=3, connections_per_ip_max=1)
    path = f"{rig.config.fleet.run_dir}/gateway.g0.http.sock"

    async def local() -> RawClient:
        return RawClient(*await asyncio.open_unix_connection(path))

    held = [await local() for _ in range(3)]
    await _counted(rig, 3)
    over = await local()
    assert await over.status() == 503
    held[0].send(LIVE)
    assert await held[0].status() == 200
    for client in (*held, over):
        client.close()
    await _counted(rig, 0)
