"""The loop that runs what the ledger leases out, with a ledger that the test plays."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from typing import NamedTuple

import pytest
import structlog

from common.clock import SystemClock
from common.errors import BatonError, Code
from common.process.lifecycle import Tasks
from services.gateway.jobs import leases
from services.gateway.jobs.leases import ATTEMPTS_MAX, Key, Leases, Return, Span
from tests.rigs.peers import WAIT_SECONDS


class Held(NamedTuple):
    name: str
    failures: int = 0

    @property
    def key(self) -> Key:
        return self.name, self.failures


class Result(NamedTuple):
    held: Held
    error: str = ""

    @property
    def failed(self) -> bool:
        return bool(self.error)


class PlayedWork:
    """`waiting`: what may be taken. `answers`: for each name an error, an event to wait for, or
    nothing."""

    name = "played"

    def __init__(self) -> None:
        self.waiting: list[Held] = []
        self.answers: dict[str, BatonError | Exception | asyncio.Event] = {}
        self.settled: list[Result | Return[Held]] = []
        self.taken: list[Held] = []
        self.ended_ones: list[Held] = []
        self.lost: set[Key] = set()
        self.full = 0
        self.began, self.has_settled = asyncio.Event(), asyncio.Event()
        self.passes = 0

    async def is_quiet(self) -> bool:
        self.passes += 1
        return not self.waiting

    async def settle(self, outcomes: Sequence[Result | Return[Held]]) -> int:
        if self.full:
            self.full -= 1
            raise BatonError(Code.INTERNAL, "the disk is full")
        self.settled += outcomes
        self.has_settled.set()
        return sum(outcome.held.name == "late" for outcome in outcomes)

    async def tend(self, span: Span) -> tuple[set[Key], int]:
        assert span.until > span.now
        return {held.key for held in self.taken} - self.lost, 2

    def room(self, running: int) -> int:
        return 2 - running

    async def take(self, room: int, span: Span) -> list[Held]:
        taken, self.waiting = self.waiting[:room], self.waiting[room:]
        self.taken += taken
        return taken

    async def answer(self, held: Held) -> Result:
        self.began.set()
        answer = self.answers.get(held.name)
        if isinstance(answer, Exception):
            raise answer
        if answer is not None:
            await answer.wait()
        return Result(held)

    def failure(self, held: Held, error: BatonError) -> Result:
        return Result(held, str(error))

    def ended(self, held: Held) -> None:
        self.ended_ones.append(held)


class Rig(NamedTuple):
    work: PlayedWork
    leases: Leases[Held, Result]

    async def run(self, *names: str, until: int = 0, failures: int = 0) -> None:
        """These, until so many outcomes are settled; 0: as many as there are."""
        self.work.waiting += [Held(name, failures) for name in names]
        self.leases.look()
        await self.until_settled(until or len(names))

    async def until_settled(self, count: int) -> None:
        async with asyncio.timeout(WAIT_SECONDS):
            while len(self.work.settled) < count:
                self.leases.look()
                self.work.has_settled.clear()
                await self.work.has_settled.wait()


@pytest.fixture
async def rig(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Rig]:
    """Nothing but being woken makes its loop go round."""
    monkeypatch.setattr(leases, "POLL_SECONDS", 600.0)
    monkeypatch.setattr(leases, "PAUSE_SECONDS", 0.01)
    work, tasks = PlayedWork(), Tasks()
    made = Leases[Held, Result](
        work,
        lease_ms=600_000.0,
        is_possible=lambda: True,
        clock=SystemClock(),
        log=structlog.get_logger("test"),
    )
    made.start(tasks)
    yield Rig(work, made)
    await made.close()
    await tasks.cancel_all()


async def test_each_is_answered_and_counted_once(rig: Rig) -> None:
    await rig.run("a", "b", "c", "late")
    assert {outcome.held.name for outcome in rig.work.settled} == {"a", "b", "c", "late"}
    counts = rig.leases.counts
    assert (counts.answered, counts.failed, counts.returned, counts.late) == (4, 0, 0, 1)
    assert counts.reclaimed == 2
    assert len(rig.work.ended_ones) == 4


@pytest.mark.parametrize(
    ("code", "failures", "outcome"),
    [
        (Code.WORKER_LOST, 0, Return(Held("a", 0), counts=True)),
        (Code.WORKER_LOST, ATTEMPTS_MAX - 1, Result(Held("a", ATTEMPTS_MAX - 1), "no luck")),
        (Code.INVALID_REQUEST, 0, Result(Held("a", 0), "no luck")),
        (Code.OVERLOADED, ATTEMPTS_MAX, Return(Held("a", ATTEMPTS_MAX))),
    ],
)
async def test_what_an_error_makes_of_one(
    rig: Rig, code: Code, failures: int, outcome: Result | Return[Held]
) -> None:
    rig.work.answers["a"] = BatonError(code, "no luck")
    await rig.run("a", failures=failures)
    assert rig.work.settled == [outcome]
    assert rig.leases.counts.failed == isinstance(outcome, Result)
    assert rig.leases.counts.returned == isinstance(outcome, Return)


async def test_a_limit_of_a_key_holds_up_nobody_else(rig: Rig) -> None:
    rig.work.answers["a"] = BatonError(Code.RATE_LIMITED, "slower", retry_after_ms=600_000)
    await rig.run("a", "b", "c")
    (returned,) = [outcome for outcome in rig.work.settled if isinstance(outcome, Return)]
    assert returned.retry_ms > SystemClock().unix_ms() + 500_000
    assert rig.leases.counts.answered == 2


async def test_a_busy_fleet_is_left_alone_for_as_long_as_it_says(rig: Rig) -> None:
    rig.work.answers["a"] = BatonError(Code.OVERLOADED, "busy", retry_after_ms=600_000)
    await rig.run("a")
    rig.work.waiting.append(Held("b"))
    passes = rig.work.passes
    async with asyncio.timeout(WAIT_SECONDS):
        while rig.work.passes < passes + 3:
            rig.leases.look()
            await asyncio.sleep(0)
    assert [held.name for held in rig.work.taken] == ["a"]


async def test_a_defect_ends_one_of_them_and_not_the_loop(rig: Rig) -> None:
    rig.work.answers["a"] = ZeroDivisionError()
    await rig.run("a", "b")
    assert Result(Held("a"), "internal error") in rig.work.settled
    assert Result(Held("b")) in rig.work.settled


async def test_what_became_anothers_is_broken_off_and_makes_nothing(rig: Rig) -> None:
    rig.work.answers["a"] = asyncio.Event()
    rig.work.waiting.append(Held("a"))
    rig.leases.look()
    await rig.work.began.wait()
    rig.work.lost.add(Held("a").key)
    rig.leases.wake()
    await rig.until_settled(1)
    assert rig.work.settled == [Return(Held("a"))]
    assert rig.work.ended_ones == [Held("a")]


async def test_outcomes_wait_for_room_in_the_ledger_and_nothing_is_taken_meanwhile(
    rig: Rig,
) -> None:
    gate = rig.work.answers["a"] = asyncio.Event()
    rig.work.waiting += [Held("a")]
    rig.leases.look()
    await rig.work.began.wait()
    rig.work.full = 3
    rig.work.waiting += [Held("b")]
    gate.set()
    async with asyncio.timeout(WAIT_SECONDS):
        while rig.work.full:
            assert rig.work.taken == [Held("a")]
            rig.leases.look()
            await asyncio.sleep(0)
    await rig.until_settled(2)
    assert rig.work.settled == [Result(Held("a")), Result(Held("b"))]


async def test_what_runs_at_the_end_is_returned_and_no_more_is_taken(rig: Rig) -> None:
    rig.work.answers["a"] = asyncio.Event()
    rig.work.waiting.append(Held("a"))
    rig.leases.look()
    await rig.work.began.wait()
    rig.work.waiting.append(Held("b"))
    await rig.leases.close()
    assert rig.work.settled == [Return(Held("a"))]
    assert rig.work.ended_ones == [Held("a")]
    assert rig.work.waiting == [Held("b")]


async def test_a_ledger_that_stays_full_keeps_no_gateway_from_ending(rig: Rig) -> None:
    rig.work.answers["a"] = asyncio.Event()
    rig.work.waiting.append(Held("a"))
    rig.leases.look()
    await rig.work.began.wait()
    rig.work.full = 1
    await rig.leases.close()
    assert rig.work.settled == []
    assert rig.work.ended_ones == [Held("a")]


async def test_one_that_drains_ends_what_runs_and_takes_no_more(rig: Rig) -> None:
    gate = rig.work.answers["a"] = asyncio.Event()
    rig.work.waiting.append(Held("a"))
    rig.leases.look()
    await rig.work.began.wait()
    rig.work.waiting.append(Held("b"))
    rig.leases.stop_taking()
    gate.set()
    await rig.until_settled(1)
    assert rig.work.settled == [Result(Held("a"))]
    assert rig.work.waiting == [Held("b")]
