"""An engine that makes no step is asked; the time without an answer is known."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

import pytest

from common.engine.probe import PROBE_SECONDS, Probe


class Engine:
    """Answers a question when its future is resolved. `now` is in seconds."""

    def __init__(self) -> None:
        self.now = 100.0
        self.asked: asyncio.Queue[asyncio.Future[None]] = asyncio.Queue()
        self.probe = Probe(self.ask, lambda: self.now)

    async def ask(self) -> None:
        answer: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.asked.put_nowait(answer)
        await answer

    async def question(self) -> asyncio.Future[None]:
        async with asyncio.timeout(5):
            return await self.asked.get()


@asynccontextmanager
async def running(engine: Engine) -> AsyncIterator[asyncio.Task[None]]:
    task = asyncio.get_running_loop().create_task(engine.probe.run())
    yield task
    if task.cancel():
        with suppress(asyncio.CancelledError):
            await task


async def until_it_waits() -> None:
    """What can run has run."""
    for _ in range(5):
        await asyncio.sleep(0)


async def test_silence_grows_until_the_answer() -> None:
    engine = Engine()
    engine.now += PROBE_SECONDS
    async with running(engine):
        answer = await engine.question()
        assert engine.probe.silent_seconds == 0.0
        engine.now += 7.0
        assert engine.probe.silent_seconds == engine.probe.stuck_seconds == 7.0
        answer.set_result(None)
        await until_it_waits()
        assert engine.probe.silent_seconds == engine.probe.stuck_seconds == 0.0


async def test_an_engine_that_steps_is_not_asked() -> None:
    engine = Engine()
    engine.now += 50.0
    engine.probe.on_step()
    async with running(engine):
        await until_it_waits()
        assert engine.asked.empty()


async def test_one_whose_work_was_taken_is_asked_at_once_and_stuck_since_its_last_step() -> None:
    engine = Engine()
    async with running(engine):
        await until_it_waits()
        assert engine.asked.empty()
        engine.now += 0.5
        engine.probe.on_requests_taken(since=98.0)
        assert engine.probe.stuck_seconds == 2.5
        answer = await engine.question()
        engine.now += 1.0
        assert (engine.probe.stuck_seconds, engine.probe.silent_seconds) == (3.5, 1.0)
        answer.set_result(None)
        await until_it_waits()
        assert engine.probe.stuck_seconds == 0.0


async def test_an_answer_to_an_earlier_question_is_not_the_last() -> None:
    """It was asked before its work was taken: it is asked again."""
    engine = Engine()
    engine.now += PROBE_SECONDS
    async with running(engine):
        answer = await engine.question()
        engine.probe.on_requests_taken(since=99.0)
        answer.set_result(None)
        await engine.question()


async def test_what_asking_raises_ends_it() -> None:
    engine = Engine()
    engine.now += PROBE_SECONDS
    async with running(engine) as task:
        (await engine.question()).set_exception(ValueError("dead"))
        with pytest.raises(ValueError, match="dead"):
            await task


async def test_an_engine_for_which_there_is_work_is_asked_at_once() -> None:
    engine = Engine()
    async with running(engine):
        engine.probe.ask_now()
        first = await engine.question()
        engine.probe.ask_now()
        await until_it_waits()
        assert engine.asked.empty(), "one question at a time"
        first.set_result(None)
        await engine.question()
