"""Which of two routers a gateway uses, over real sockets with a clock that the test moves."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import structlog
from msgspec.structs import replace

from common.clock import ManualClock
from common.messages import (
    WIRE_VERSION,
    Cancel,
    Failed,
    Fleet,
    GatewayToRouter,
    Hello,
    Live,
    Ping,
    Placed,
    Role,
    Submit,
    Welcome,
)
from common.net.sockets import Dial
from services.gateway.links.routers import RouterLinks
from services.gateway.requests.events import Event, FromRouter, RouterDown, RouterUp
from tests.rigs.peers import Peer

SUBMIT = Submit(request_id="r", attempt=1, prompt_tokens=1, max_tokens=1)
CANCEL = Cancel(request_id="r", attempt=1, reason="test")
PLACED = Placed(request_id="r", attempt=1, decode="d0", decode_incarnation="1")
FAILED = Failed(request_id="r", attempt=1, code="worker_lost", message="test")


class FakeRouter(Peer):
    """The router's end of the socket."""

    def __init__(self, name: str, address: str) -> None:
        super().__init__(address, GatewayToRouter)
        self.name = name

    async def welcome(self) -> None:
        await self.next(Hello)
        self.send(Welcome(wire_version=WIRE_VERSION, name=self.name, incarnation="1"))
        await self.next(Live)


class Bench:
    def __init__(self, run_dir: Path) -> None:
        self.addresses = {name: f"ipc://{run_dir}/{name}.sock" for name in ("main", "r1")}
        self.clock = ManualClock(100.0)
        self.events: asyncio.Queue[Event] = asyncio.Queue()
        self.main, self.r1 = (FakeRouter(n, a) for n, a in self.addresses.items())
        hello = Hello(wire_version=WIRE_VERSION, role=Role.GATEWAY, name="g0", incarnation="k")
        self.links = RouterLinks(
            hello,
            dials={name: Dial(at) for name, at in self.addresses.items()},
            silence_seconds=1.0,
            clock=self.clock,
            handle=self.events.put_nowait,
            live=Live,
            on_refused=lambda reason: None,
            log=structlog.get_logger("test"),
        )
        self.links.start()

    async def event(self) -> Event:
        async with asyncio.timeout(5):
            return await self.events.get()

    async def heard(self, router: FakeRouter) -> None:
        """Waits until what this router said last has arrived, by a Placed that always counts."""
        router.send(PLACED)
        while True:
            event = await self.event()
            if event == FromRouter(PLACED):
                return


@pytest.fixture
async def bench(tmp_path: Path) -> AsyncIterator[Bench]:
    made = Bench(tmp_path)
    yield made
    made.links.close()
    made.main.close()
    made.r1.close()


async def both_up(bench: Bench) -> None:
    await bench.main.welcome()
    assert await bench.event() == RouterUp()
    await bench.r1.welcome()


async def test_the_first_that_answers_is_used_and_kept(bench: Bench) -> None:
    await bench.r1.welcome()
    assert await bench.event() == RouterUp()
    await bench.main.welcome()
    assert bench.links.used == "r1"
    bench.links.send(SUBMIT, b"body")
    await bench.r1.next(Submit)
    assert bench.events.empty()


async def test_a_closed_connection_fails_over_at_once_and_does_not_fail_back(bench: Bench) -> None:
    await both_up(bench)
    bench.main.close()
    assert [await bench.event(), await bench.event()] == [RouterDown(), RouterUp()]
    assert bench.links.used == "r1"
    bench.main = FakeRouter("main", bench.addresses["main"])
    await bench.main.welcome()
    assert bench.links.used == "r1"
    assert bench.events.empty()


async def test_silence_fails_over_only_to_one_that_speaks(bench: Bench) -> None:
    await both_up(bench)
    bench.clock.advance(1.1)
    bench.links.tick()
    assert bench.links.used == "main", "all are silent: the fault is likelier ours"
    await bench.heard(bench.r1)
    bench.links.tick()
    assert [await bench.event(), await bench.event()] == [RouterDown(), RouterUp()]
    assert bench.links.used == "r1"


async def test_a_ping_is_a_sign_of_life(bench: Bench) -> None:
    await both_up(bench)
    bench.clock.advance(0.9)
    bench.main.send(Ping())
    await bench.heard(bench.main)
    bench.clock.advance(0.9)
    await bench.heard(bench.r1)
    bench.links.tick()
    assert bench.links.used == "main"


async def test_of_a_router_not_in_use_only_a_placement_counts(bench: Bench) -> None:
    await both_up(bench)
    bench.r1.send(FAILED)
    bench.r1.send(PLACED)
    assert await bench.event() == FromRouter(PLACED)
    bench.main.send(FAILED)
    assert await bench.event() == FromRouter(FAILED)


async def test_the_next_routers_fleet_is_known_when_it_is_used(bench: Bench) -> None:
    """The latest of each model."""
    await both_up(bench)
    none = Fleet(ready=False, prefill_ready=0, decode_ready=0, max_model_len=9, model="a")
    fleets = [replace(none, model=model, ready=True) for model in ("a", "b")]
    for fleet in (none, *fleets):
        bench.r1.send(fleet)
    await bench.heard(bench.r1)
    bench.main.close()
    events = [await bench.event() for _ in range(4)]
    assert events == [RouterDown(), RouterUp(), *map(FromRouter, fleets)]


async def test_all_routers_hear_a_cancel_and_one_a_submit(bench: Bench) -> None:
    await both_up(bench)
    bench.links.send(SUBMIT, b"body")
    bench.links.send(CANCEL)
    await bench.main.next(Submit)
    await bench.main.next(Cancel)
    assert bench.r1.decoded(await bench.r1.hear()) == CANCEL
