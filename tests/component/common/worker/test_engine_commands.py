"""What an engine is told, in its order, and by whom a warm worker is put to sleep and woken."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from common.clock import ManualClock
from common.engine.port import EngineRequest
from common.messages import (
    KvSource,
    Load,
    Prefetch,
    RequestBody,
    Role,
    Sampling,
    Wake,
    WarmState,
)
from common.net.wire import encode, pack_ids
from common.process.lifecycle import Tasks
from common.worker.actions import (
    AbortInEngine,
    AddToEngine,
    Dispatched,
    EngineRefused,
    LeaveEngine,
)
from common.worker.engine_commands import EngineCommands
from services.decode.core import DecodeCore
from services.decode.grant_limit import GrantLimit
from tests.rigs.engines import PlayedEngine
from tests.rigs.messages import decode

REQUEST = EngineRequest("r", 1, Role.DECODE, [1, 2], Sampling(max_tokens=4))


class Bench:
    """Commands to an engine that the test plays."""

    def __init__(self, *, warm: bool) -> None:
        self.engine, self.clock = PlayedEngine(Load()), ManualClock()
        self.refused: list[EngineRefused] = []
        self.states: list[WarmState | None] = []
        self.core = DecodeCore("d0", "i", GrantLimit(2, 1024, 16))
        self.commands = EngineCommands(
            self.engine,
            self.core,
            self.clock,
            warm=warm,
            refused=self.refused.append,
            changed=lambda: self.states.append(self.commands.warm_state),
        )

    async def asked(self, count: int) -> list[str]:
        return [await asyncio.wait_for(self.engine.asked.get(), 5) for _ in range(count)]


@asynccontextmanager
async def running(*, warm: bool) -> AsyncIterator[Bench]:
    bench, tasks = Bench(warm=warm), Tasks()
    await bench.commands.fall_asleep()
    tasks.start("engine-commands", bench.commands.run())
    yield bench
    await tasks.cancel_all()


async def test_a_warm_worker_sleeps_from_the_start_and_does_as_it_is_told() -> None:
    async with running(warm=True) as bench:
        assert bench.commands.warm_state == WarmState(asleep=True)
        for order in (Wake(), Wake(), Wake(on=False), Wake(on=False), Wake()):
            bench.commands.put(order)
        assert await bench.asked(4) == ["sleep", "wake", "sleep", "wake"]
        assert [state and state.asleep for state in bench.states] == [False, True, False]


async def test_a_request_wakes_it_before_it_is_added() -> None:
    async with running(warm=True) as bench:
        bench.commands.put(AddToEngine(REQUEST))
        bench.commands.put(AbortInEngine("r", 1))
        assert await bench.asked(4) == ["sleep", "wake", "add r#1 [1, 2]", "abort r#1"]
        assert not bench.commands.asleep


async def test_it_stays_awake_if_its_engine_does_and_says_so() -> None:
    async with running(warm=True) as bench:
        bench.commands.put(Wake())
        await bench.asked(2)
        bench.engine.sleeps = False
        bench.commands.put(Wake(on=False))
        assert await bench.asked(1) == ["sleep"]
        assert [state and state.asleep for state in bench.states] == [False, False]


async def test_it_does_not_sleep_while_it_has_a_stream() -> None:
    async with running(warm=True) as bench:
        body = RequestBody(prompt_ids=pack_ids([1, 2]), sampling=Sampling(max_tokens=4))
        for action in bench.core.handle(Dispatched(decode(), body), 1.0):
            assert isinstance(action, AddToEngine)
            bench.commands.put(action)
        bench.commands.put(Wake(on=False))
        bench.commands.put(AbortInEngine("r", 1))
        assert await bench.asked(4) == ["sleep", "wake", "add r#1 [1, 2]", "abort r#1"]


async def test_a_worker_that_is_not_warm_never_sleeps() -> None:
    async with running(warm=False) as bench:
        for order in (Wake(on=False), Wake()):
            bench.commands.put(order)
        bench.commands.put(AbortInEngine("r", 1))
        assert await bench.asked(1) == ["abort r#1"]
        assert bench.commands.warm_state is None
        assert bench.states == []


async def test_what_the_engine_refuses_is_told() -> None:
    async with running(warm=False) as bench:
        bench.engine.refuse = "too long"
        bench.commands.put(AddToEngine(REQUEST))
        bench.commands.put(AbortInEngine("r", 1))
        await bench.asked(1)
        assert [(each.request_id, each.message) for each in bench.refused] == [("r", "too long")]


async def test_a_prompt_that_waits_in_the_queue_is_prefetched_unless_the_engine_sleeps() -> None:
    body = encode(RequestBody(prompt_ids=pack_ids([1, 2, 3]), sampling=Sampling(max_tokens=4)))
    source = KvSource(name="d1", incarnation="i", fingerprint="f", kv_address="h:1", tokens=2)
    order = Prefetch(request_id="r", attempt=1, body=body, source=source)
    odd = Prefetch(request_id="odd", attempt=1, body=b"what no router sends")
    async with running(warm=True) as bench:
        ends = AbortInEngine("r", 1), LeaveEngine("s", 2)
        for command in (order, Wake(), odd, order, *ends):
            bench.commands.put(command)
        told = ["sleep", "wake", "prefetch r#1 [1, 2, 3] from d1", "abort r#1", "leave s#2"]
        assert await bench.asked(5) == told
