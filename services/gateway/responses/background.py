"""When responses of the background run, and what becomes of each: the loop of one gateway process
over the shared ledger.

Theory of operation: a process runs at most `background_at_once`, as requests of their key's own
class; what waits beyond that waits in the ledger, and any process of the host takes it. One pass
writes down what became of responses since the last one, renews what it holds, returns what dead
processes held, and takes new ones. Between passes it sleeps until there is something to do, or
`POLL_SECONDS` have passed, for those of other processes.

An attempt that failed is repeated `ATTEMPTS_MAX` times. A refused one waits, until it expires.
"""

from __future__ import annotations

import asyncio
import sqlite3
from contextlib import suppress
from dataclasses import dataclass

from common.clock import Clock
from common.config import JobsConfig
from common.errors import BatonError, Code
from common.process.lifecycle import Tasks
from common.telemetry.log import Logger
from services.gateway.api.intake import request_id
from services.gateway.api.routes import Route
from services.gateway.jobs.batch_work import HOUR_MS
from services.gateway.jobs.ledger import Ledger
from services.gateway.jobs.line_answers import LineAnswers
from services.gateway.jobs.runner import (
    ATTEMPTS_MAX,
    PASS_SECONDS,
    PAUSE_SECONDS,
    POLL_SECONDS,
    RENEWALS,
)
from services.gateway.responses import conversation, records
from services.gateway.responses.records import Held, Result, Return, Status


@dataclass(slots=True)
class Counts:
    """Since the process started."""

    answered: int = 0
    failed: int = 0
    #: Sent back: refused, broken off, or to be tried again.
    returned: int = 0
    #: Outcomes that were not taken: cancelled, deleted, or another process's by then.
    late: int = 0
    #: Those of processes that said nothing any more.
    reclaimed: int = 0


class Background:
    """`holder`: the process, unique among all that use the ledger."""

    def __init__(
        self,
        ledger: Ledger,
        answers: LineAnswers,
        config: JobsConfig,
        *,
        holder: str,
        clock: Clock,
        log: Logger,
    ) -> None:
        self.counts = Counts()
        self._ledger = ledger
        self._answers = answers
        self._config = config
        self._holder = holder
        self._clock = clock
        self._log = log
        self._tasks: Tasks | None = None
        self._loop: asyncio.Task[None] | None = None
        self._wake = asyncio.Event()
        #: By taking: one that was taken again may still be ending.
        self._running: dict[tuple[str, int], asyncio.Task[None]] = {}
        #: What responses made of themselves that are not over yet.
        self._made: dict[tuple[str, int], Result | Return] = {}
        self._outcomes: list[Result | Return] = []
        self._takes = True
        #: When others are taken again, and when leases are renewed; seconds, monotonic.
        self._paused_until = self._renew_at = 0.0

    @property
    def running(self) -> int:
        """Responses under way."""
        return len(self._running)

    def wake(self) -> None:
        """Something is to be done, or not to be done any more."""
        self._renew_at = 0.0
        self._wake.set()

    def start(self, tasks: Tasks) -> None:
        self._tasks = tasks
        self._loop = tasks.start("background-responses", self._repeat())

    def stop_taking(self) -> None:
        """What runs may end."""
        self._takes = False

    async def close(self) -> None:
        """Breaks off what runs, and returns it to the ledger for others."""
        self._takes = False
        under_way = [*self._running.values(), *filter(None, [self._loop])]
        for task in under_way:
            task.cancel()
        if under_way:
            await asyncio.wait(under_way)
        await self._settle()

    async def _repeat(self) -> None:
        while True:
            try:
                await self._pass()
            except BatonError as error:
                self._log.error("responses.delayed", sentence=str(error))
                await asyncio.sleep(PAUSE_SECONDS)
            await asyncio.sleep(PASS_SECONDS)
            with suppress(TimeoutError):
                async with asyncio.timeout(POLL_SECONDS):
                    await self._wake.wait()
            self._wake.clear()

    async def _pass(self) -> None:
        """Raises BatonError if the ledger cannot be used."""
        await self._settle()
        if self._clock.monotonic() >= self._renew_at:
            await self._tend()
        if not await self._ledger.read(records.is_quiet):
            await self._take()

    async def _settle(self) -> None:
        outcomes = self._outcomes[:]
        if not outcomes:
            return
        self.counts.late += await self._ledger.change(lambda db: records.settle(db, outcomes))
        del self._outcomes[: len(outcomes)]
        for outcome in outcomes:
            if isinstance(outcome, Return):
                self.counts.returned += 1
            elif outcome.status is Status.FAILED:
                self.counts.failed += 1
            else:
                self.counts.answered += 1

    async def _tend(self) -> None:
        """What the clock asks for. Our own are renewed first, so that they are not reclaimed."""
        self._renew_at = self._clock.monotonic() + self._config.lease_ms / 1000 / RENEWALS
        now, keep = self._clock.unix_ms(), self._config.keep_hours * HOUR_MS
        until = now + int(self._config.lease_ms)

        def tend(db: sqlite3.Connection) -> tuple[set[tuple[str, int]], int]:
            held = records.renew(db, self._holder, until)
            records.expire(db, now, keep)
            return held, records.reclaim(db, now)

        running = set(self._running)
        held, reclaimed = await self._ledger.change(tend)
        self.counts.reclaimed += reclaimed
        for key in (running - held) & self._running.keys():
            self._running[key].cancel()

    async def _take(self) -> None:
        room = self._config.background_at_once - len(self._running)
        paused = self._clock.monotonic() < self._paused_until
        if room <= 0 or paused or not self._takes or not self._answers.is_possible:
            return
        now = self._clock.unix_ms()
        until = now + int(self._config.lease_ms)
        taken = await self._ledger.change(
            lambda db: records.take(db, self._holder, room, now, until)
        )
        assert self._tasks is not None
        for held in taken:
            self._begin(held, self._tasks)

    # ------------------------------------------------------------ one response

    def _begin(self, held: Held, tasks: Tasks) -> None:
        self._running[held.key] = task = tasks.start(held.id, self._run(held), ends=True)
        task.add_done_callback(lambda _: self._ended(held))

    def _ended(self, held: Held) -> None:
        """One that was broken off made nothing, and is returned."""
        self._outcomes.append(self._made.pop(held.key, Return(held)))
        del self._running[held.key]
        self._wake.set()

    async def _run(self, held: Held) -> None:
        try:
            self._made[held.key] = await self._outcome(held)
        except Exception as error:  # noqa: BLE001 - a defect must not take the gateway along
            self._log.error("response.crashed", response=held.id, exc_info=error)
            internal = BatonError(Code.INTERNAL, "internal error")
            self._made[held.key] = _failed(held, internal)

    async def _outcome(self, held: Held) -> Result | Return:
        client = request_id(held.id.removeprefix("resp_"))
        try:
            answer = await self._answers.answer(
                Route.RESPONSES.value,
                held.request,
                held.owner,
                client,
                lambda: None,
                is_line=False,
            )
        except BatonError as error:
            return self._judged(held, error)
        return await self._ledger.aside(lambda: _answered(held, answer))

    def _judged(self, held: Held, error: BatonError) -> Result | Return:
        """What an error makes of a response: it waits again, is tried again, or has failed."""
        if error.http.status in (429, 503):
            seconds = max(PAUSE_SECONDS, (error.retry_after_ms or 0) / 1000)
            if error.code is Code.RATE_LIMITED:
                return Return(held, retry_ms=self._clock.unix_ms() + int(seconds * 1000))
            self._paused_until = self._clock.monotonic() + seconds
            return Return(held)
        if error.http.retryable and held.failures + 1 < ATTEMPTS_MAX:
            return Return(held, counts=True)
        return _failed(held, error)


def _answered(held: Held, answer: bytes) -> Result:
    status = Status(conversation.status_of(answer))
    return Result(held, status, conversation.finished(held.shown, answer))


def _failed(held: Held, error: BatonError) -> Result:
    return Result(held, Status.FAILED, conversation.failed(held.shown, error))
