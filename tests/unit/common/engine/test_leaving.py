"""The engine is asked once for all streams that leave meanwhile, and its answer comes behind their
outputs."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

from common.engine.leaving import Leaving, Left
from common.process.lifecycle import Tasks


class Engine:
    """Answers a call when its future is resolved."""

    def __init__(self) -> None:
        self.calls: asyncio.Queue[tuple[str, Sequence[str], asyncio.Future[None]]]
        self.calls = asyncio.Queue()
        self.outputs: asyncio.Queue[object] = asyncio.Queue()
        self.leaving = Leaving(self.ask, self.outputs.put_nowait)

    async def ask(self, method: str, keys: Sequence[str]) -> None:
        answer: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.calls.put_nowait((method, keys, answer))
        await answer

    async def called(self) -> tuple[Sequence[str], asyncio.Future[None]]:
        async with asyncio.timeout(5):
            method, keys, answer = await self.calls.get()
        assert method == "abort_requests"
        return keys, answer


@asynccontextmanager
async def running() -> AsyncIterator[tuple[Engine, Tasks]]:
    engine, tasks = Engine(), Tasks()
    tasks.start("leaving", engine.leaving.run())
    yield engine, tasks
    await tasks.cancel_all()


async def test_those_that_leave_while_it_is_asked_are_one_more_call() -> None:
    async with running() as (engine, _):
        engine.leaving.add("a#1")
        keys, answer = await engine.called()
        assert keys == ["a#1"]
        for key in ("b#1", "c#2"):
            engine.leaving.add(key)
        engine.outputs.put_nowait("the last token of a")
        assert engine.calls.empty()
        answer.set_result(None)
        keys, answer = await engine.called()
        assert keys == ["b#1", "c#2"]
        answer.set_result(None)
        got = [await asyncio.wait_for(engine.outputs.get(), 5) for _ in range(3)]
        assert got == ["the last token of a", Left(["a#1"]), Left(["b#1", "c#2"])]
        assert engine.calls.empty()


async def test_an_engine_that_died_is_told() -> None:
    async with running() as (engine, tasks):
        engine.leaving.add("a#1")
        _, answer = await engine.called()
        answer.set_exception(RuntimeError("the engine has died"))
        name, error = await asyncio.wait_for(asyncio.shield(tasks.failed), 5)
        assert (name, str(error)) == ("leaving", "the engine has died")
        assert engine.outputs.empty()
