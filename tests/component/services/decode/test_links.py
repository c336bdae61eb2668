"""Stream links over real sockets: greeting first, then tokens; a lost gateway is told at once."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import structlog

from common.messages import WIRE_VERSION, Abort, DecodeToGateway, Delta, Hello, Refused, Tokens
from common.net.endpoints import STREAM
from common.worker.actions import Event, GatewayGone, ToGateway
from services.decode.links import HELD_FRAMES_MAX, GatewayLinks
from tests.rigs.peers import Peer


class Bench:
    """Links of d0 and, once `listen` was called, the gateway's end."""

    def __init__(self, folder: Path) -> None:
        self.endpoint = f"ipc://{folder}/g0.stream.sock"
        self.events: asyncio.Queue[Event] = asyncio.Queue()
        log = structlog.get_logger("test")
        self.links = GatewayLinks("d0", "i", self.events.put_nowait, log)
        self.gateway: Peer | None = None

    def listen(self) -> Peer:
        self.gateway = Peer(self.endpoint, DecodeToGateway, STREAM)
        return self.gateway

    def send(self, token: int) -> bool:
        delta = Delta("r", 1, token, [token])
        return self.links.send(ToGateway("g0", "k", self.endpoint, [delta]))

    async def hear(self) -> object:
        assert self.gateway is not None
        return self.gateway.decoded(await self.gateway.hear())

    async def event(self) -> Event:
        async with asyncio.timeout(5):
            return await self.events.get()


@pytest.fixture
async def bench(tmp_path: Path) -> AsyncIterator[Bench]:
    made = Bench(tmp_path)
    yield made
    made.links.close()
    if made.gateway is not None:
        made.gateway.close()


async def test_the_greeting_comes_first_and_tokens_made_before_it_are_kept_in_order(
    bench: Bench,
) -> None:
    assert all(bench.send(i) for i in range(3))
    bench.listen()
    hello = await bench.hear()
    assert isinstance(hello, Hello)
    assert (hello.wire_version, hello.name, hello.incarnation) == (WIRE_VERSION, "d0", "i")
    for i in range(3):
        tokens = await bench.hear()
        assert isinstance(tokens, Tokens)
        assert tokens.deltas[0].token_ids == [i]
    assert bench.send(3)
    assert isinstance(await bench.hear(), Tokens)


async def test_a_gateways_abort_reaches_the_core(bench: Bench) -> None:
    gateway = bench.listen()
    bench.send(0)
    await bench.hear()
    abort = Abort(request_id="r", attempt=1, reason="stop string")
    gateway.send(abort)
    assert await bench.event() == abort


async def test_a_gateway_that_goes_is_told_once_and_a_new_link_is_made_for_the_next(
    bench: Bench,
) -> None:
    bench.listen()
    bench.send(0)
    assert isinstance(await bench.hear(), Hello)
    assert isinstance(await bench.hear(), Tokens)
    assert bench.gateway is not None
    bench.gateway.close()
    gone = await bench.event()
    assert isinstance(gone, GatewayGone)
    assert (gone.gateway, gone.incarnation) == ("g0", "k")
    assert bench.events.empty()
    bench.listen()
    assert bench.send(5)
    assert isinstance(await bench.hear(), Hello)


async def test_a_gateway_that_refuses_is_gone(bench: Bench) -> None:
    gateway = bench.listen()
    bench.send(0)
    await bench.hear()
    gateway.send(Refused(code="wire_mismatch", message="too old"))
    gone = await bench.event()
    assert isinstance(gone, GatewayGone)
    assert "too old" in gone.reason


async def test_frames_of_no_known_message_are_dropped(bench: Bench) -> None:
    gateway = bench.listen()
    bench.send(0)
    await bench.hear()
    gateway.send_frames(b"\xff")
    abort = Abort(request_id="r", attempt=1, reason="after the junk")
    gateway.send(abort)
    assert await bench.event() == abort


async def test_what_is_held_before_the_connection_is_bounded(bench: Bench) -> None:
    taken = [bench.send(i) for i in range(HELD_FRAMES_MAX + 1)]
    assert all(taken[:-1])
    assert taken[-1] is False
    assert isinstance(await bench.event(), GatewayGone)
