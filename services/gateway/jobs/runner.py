"""When lines run, and what becomes of each: the loop of one gateway process over the shared ledger.

Theory of operation: a process has at most `lines_waiting` lines in the router's queue, as requests
of the lowest class, and takes another one when a worker was named for one of them. So the router
decides how much runs: it places the lowest class only where there is room, and what a batch has
beyond that waits in the ledger, where it costs nobody anything. A refusal sends a line back, and
lines are taken again when the refusal says.

One pass of the loop writes down what became of lines since the last one, in one transaction, and
takes new ones. Between passes it sleeps until a line ends or is placed, a batch comes here, or
`POLL_SECONDS` have passed, for batches and deadlines of other processes.

A line whose attempt failed is tried `ATTEMPTS_MAX` times, a refused one until its batch expires.
"""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass

from common.clock import Clock
from common.config import JobsConfig
from common.errors import BatonError, Code
from common.process.lifecycle import Tasks
from common.telemetry.log import Logger
from services.gateway.api.intake import request_id
from services.gateway.jobs import batches, entries, files, lines
from services.gateway.jobs.batch_work import HOUR_MS, BatchWork
from services.gateway.jobs.ledger import Ledger
from services.gateway.jobs.line_answers import LineAnswers
from services.gateway.jobs.lines import Held, Result, Return
from services.gateway.jobs.plan import LineError, request_body

POLL_SECONDS = 1.0
#: Parts of a lease after which it is renewed.
RENEWALS = 3
ATTEMPTS_MAX = 3
PAUSE_SECONDS = 1.0
#: Passes follow each other this closely at most, so that one transaction settles many lines.
PASS_SECONDS = 0.01


@dataclass(slots=True)
class Counts:
    """Since the process started."""

    completed: int = 0
    failed: int = 0
    #: Sent back: refused, broken off, or to be tried again.
    returned: int = 0
    #: Outcomes that were not taken, because the line was another process's by then.
    late: int = 0
    #: Lines of processes that said nothing any more.
    reclaimed: int = 0


class Runner:
    """`holder`: the process, unique among all that use the ledger."""

    def __init__(
        self,
        ledger: Ledger,
        answers: LineAnswers,
        work: BatchWork,
        config: JobsConfig,
        *,
        holder: str,
        clock: Clock,
        log: Logger,
    ) -> None:
        self.counts = Counts()
        self._ledger = ledger
        self._answers = answers
        self._work = work
        self._config = config
        self._holder = holder
        self._clock = clock
        self._log = log
        self._tasks: Tasks | None = None
        self._loops: list[asyncio.Task[None]] = []
        self._wake, self._batch_wake = asyncio.Event(), asyncio.Event()
        self._running: dict[lines.Key, asyncio.Task[None]] = {}
        #: What lines made of themselves that are not over yet.
        self._made: dict[lines.Key, Result | Return] = {}
        #: Of those, the ones that have no worker yet.
        self._unplaced: set[lines.Key] = set()
        self._outcomes: list[Result | Return] = []
        self._takes = True
        self._turn = 0
        #: When lines are taken again, when leases are renewed, and when the folder is swept;
        #: seconds, monotonic.
        self._paused_until = self._renew_at = self._sweep_at = 0.0

    @property
    def running(self) -> int:
        """Lines under way."""
        return len(self._running)

    def wake(self) -> None:
        """Something is to be done, or not to be done any more."""
        self._renew_at = 0.0
        self._wake.set()
        self._batch_wake.set()

    def start(self, tasks: Tasks) -> None:
        self._tasks = tasks
        self._loops = [
            tasks.start("lines", self._repeat(self._pass, self._wake)),
            tasks.start("batches", self._repeat(self._work_on_batches, self._batch_wake)),
        ]

    def stop_taking(self) -> None:
        """What runs may end."""
        self._takes = False

    async def close(self) -> None:
        """Breaks off what runs, and returns it to the ledger for others."""
        self._takes = False
        under_way = [*self._loops, *self._running.values()]
        for task in under_way:
            task.cancel()
        if under_way:
            await asyncio.wait(under_way)
        await self._settle()

    async def _repeat(self, work: Callable[[], Awaitable[None]], wake: asyncio.Event) -> None:
        while True:
            try:
                await work()
            except (BatonError, OSError) as error:
                self._log.error("jobs.delayed", sentence=str(error))
                await asyncio.sleep(PAUSE_SECONDS)
            await asyncio.sleep(PASS_SECONDS)
            with suppress(TimeoutError):
                async with asyncio.timeout(POLL_SECONDS):
                    await wake.wait()
            wake.clear()

    async def _pass(self) -> None:
        """Raises BatonError if the ledger cannot be used."""
        await self._settle()
        if self._clock.monotonic() >= self._renew_at:
            await self._tend()
        if not await self._ledger.read(batches.is_quiet):
            await self._take()

    async def _work_on_batches(self) -> None:
        """Raises BatonError if the ledger cannot be used."""
        if await self._ledger.read(batches.is_quiet):
            return
        while self._takes and await self._work.once():
            self._wake.set()

    async def _settle(self) -> None:
        outcomes = self._outcomes[:]
        if not outcomes:
            return
        now = self._clock.unix_ms()
        ended = {outcome.held.batch for outcome in outcomes}

        def settle(db: sqlite3.Connection) -> int:
            late = lines.settle(db, outcomes)
            for batch in ended:
                batches.close_if_done(db, batch, now)
            return late

        self.counts.late += await self._ledger.change(settle)
        del self._outcomes[: len(outcomes)]
        self._batch_wake.set()
        for outcome in outcomes:
            self._count(outcome)

    def _count(self, outcome: Result | Return) -> None:
        if isinstance(outcome, Return):
            self.counts.returned += 1
        elif outcome.failed:
            self.counts.failed += 1
        else:
            self.counts.completed += 1

    async def _tend(self) -> None:
        """What the clock asks for."""
        seconds = self._clock.monotonic()
        self._renew_at = seconds + self._config.lease_ms / 1000 / RENEWALS
        now, keep = self._clock.unix_ms(), self._config.keep_hours * HOUR_MS
        until = now + int(self._config.lease_ms)
        if self._running:
            leaving = await self._ledger.change(lambda db: lines.renew(db, self._holder, until))
            for key in leaving & self._running.keys():
                self._running[key].cancel()

        def reclaim(db: sqlite3.Connection) -> int:
            of_batches = lines.reclaim(db, now)
            for batch in set(of_batches):
                batches.close_if_done(db, batch, now)
            batches.expire(db, now, keep)
            return len(of_batches)

        self.counts.reclaimed += await self._ledger.change(reclaim)
        await self._work.delete(await self._ledger.change(lambda db: files.expire(db, now)))
        if seconds >= self._sweep_at:
            self._sweep_at = seconds + HOUR_MS / 1000
            await self._work.sweep()

    async def _take(self) -> None:
        room = min(
            self._config.lines_at_once - len(self._running),
            self._config.lines_waiting - len(self._unplaced),
        )
        paused = self._clock.monotonic() < self._paused_until
        if room <= 0 or paused or not self._takes or not self._answers.is_possible:
            return
        self._turn += 1
        now = self._clock.unix_ms()
        until = now + int(self._config.lease_ms)
        taken = await self._ledger.change(
            lambda db: lines.take(db, self._holder, room, self._turn, now, until)
        )
        assert self._tasks is not None
        for held in taken:
            self._begin(held, self._tasks)

    # ------------------------------------------------------------ one line

    def _begin(self, held: Held, tasks: Tasks) -> None:
        name = f"line {held.number} of {held.batch}"
        self._unplaced.add(held.key)
        self._running[held.key] = task = tasks.start(name, self._line(held), ends=True)
        task.add_done_callback(lambda _: self._ended(held))

    def _ended(self, held: Held) -> None:
        """A line that was broken off made nothing, and is returned."""
        self._outcomes.append(self._made.pop(held.key, Return(held)))
        self._unplaced.discard(held.key)
        del self._running[held.key]
        self._wake.set()

    async def _line(self, held: Held) -> None:
        try:
            self._made[held.key] = await self._outcome(held)
        except Exception as error:  # noqa: BLE001 - a defect must not take the gateway along
            self._log.error("line.crashed", batch=held.batch, line=held.number, exc_info=error)
            internal = BatonError(Code.INTERNAL, "internal error")
            self._made[held.key] = self._failed(held, "", internal)

    async def _outcome(self, held: Held) -> Result | Return:
        client = request_id(f"{held.batch}-{held.number}")
        try:
            text = await self._ledger.aside(self._reader(held))
            body = request_body(text)
        except (OSError, LineError) as error:
            gone = BatonError(Code.NOT_FOUND, f"the line cannot be read again: {error}")
            return self._failed(held, client, gone)
        try:
            answer = await self._answers.answer(
                held.endpoint, body, held.owner, client, self._placed(held)
            )
        except BatonError as error:
            return self._judged(held, client, error)
        entry = entries.answered(held.batch, held.number, held.custom_id, client, answer)
        return Result(held, entry, failed=False, usage=entries.usage_of(answer))

    def _reader(self, held: Held) -> Callable[[], bytes]:
        def read() -> bytes:
            with self._ledger.path_of(held.input).open("rb") as file:
                file.seek(held.at)
                return file.read(held.length)

        return read

    def _placed(self, held: Held) -> Callable[[], None]:
        def placed() -> None:
            self._unplaced.discard(held.key)
            self._wake.set()

        return placed

    def _judged(self, held: Held, client: str, error: BatonError) -> Result | Return:
        """What an error makes of a line: it waits again, is tried again, or has its result."""
        if error.http.status in (429, 503):
            seconds = max(PAUSE_SECONDS, (error.retry_after_ms or 0) / 1000)
            if error.code is Code.RATE_LIMITED:
                return Return(held, retry_ms=self._clock.unix_ms() + int(seconds * 1000))
            self._paused_until = self._clock.monotonic() + seconds
            return Return(held)
        if error.http.retryable and held.failures + 1 < ATTEMPTS_MAX:
            return Return(held, counts=True)
        return self._failed(held, client, error)

    def _failed(self, held: Held, client: str, error: BatonError) -> Result:
        entry = entries.refused(held.batch, held.number, held.custom_id, client, error)
        return Result(held, entry, failed=True)
