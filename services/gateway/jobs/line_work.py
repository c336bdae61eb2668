"""How lines are taken, answered and written down (`leases.Work`).

Theory of operation: a process has at most `lines_waiting` lines in the router's queue, as requests
of the lowest class, and takes another one when a worker was named for one of them. So the router
decides how much runs: it places the lowest class only where there is room, and what a batch has
beyond that waits in the ledger, where it costs nobody anything.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Sequence

from common.clock import Clock
from common.config import JobsConfig
from common.errors import BatonError, Code
from services.gateway.api.intake import request_id
from services.gateway.jobs import batches, entries, files, lines
from services.gateway.jobs.batch_work import HOUR_MS, BatchWork
from services.gateway.jobs.leases import Key, Return, Span
from services.gateway.jobs.ledger import Ledger
from services.gateway.jobs.line_answers import LineAnswers
from services.gateway.jobs.lines import Held, Result
from services.gateway.jobs.plan import LineError, request_body


class LineWork:
    """`holder`: the process. `on_settled` is called when lines have ended, `on_placed` when there
    may be room for more."""

    name = "lines"

    def __init__(
        self,
        ledger: Ledger,
        answers: LineAnswers,
        batch_work: BatchWork,
        config: JobsConfig,
        *,
        holder: str,
        clock: Clock,
        on_settled: Callable[[], None],
        on_placed: Callable[[], None],
    ) -> None:
        self._ledger = ledger
        self._answers = answers
        self._batch_work = batch_work
        self._config = config
        self._holder = holder
        self._clock = clock
        self._on_settled = on_settled
        self._on_placed = on_placed
        #: The ids of the requests of those that run.
        self._request_ids: dict[Key, str] = {}
        #: Those that run and have no worker yet.
        self._unplaced: set[Key] = set()
        self._turn = 0
        #: When the folder is swept, in milliseconds of the wall clock.
        self._sweep_at = 0

    async def is_quiet(self) -> bool:
        return await self._ledger.read(batches.is_quiet)

    async def settle(self, outcomes: Sequence[Result | Return[Held]]) -> int:
        ended, now = {outcome.held.batch for outcome in outcomes}, self._clock.unix_ms()

        def settle(db: sqlite3.Connection) -> int:
            late = lines.settle(db, outcomes)
            for batch in ended:
                batches.close_if_done(db, batch, now)
            return late

        late = await self._ledger.change(settle)
        self._on_settled()
        return late

    async def tend(self, span: Span) -> tuple[set[Key], int]:
        """Also ends batches and deletes files whose time is over. What is held is renewed first, so
        that it is not reclaimed."""
        now, keep = span.now, self._config.keep_hours * HOUR_MS

        def tend(db: sqlite3.Connection) -> tuple[set[Key], int, list[str]]:
            held = lines.renew(db, self._holder, span.until)
            of_batches = lines.reclaim(db, now)
            for batch in set(of_batches):
                batches.close_if_done(db, batch, now)
            batches.expire(db, now, keep)
            return held, len(of_batches), files.expire(db, now)

        held, reclaimed, expired = await self._ledger.change(tend)
        await self._batch_work.delete(expired)
        if now >= self._sweep_at:
            self._sweep_at = now + HOUR_MS
            await self._batch_work.sweep()
        return held, reclaimed

    def room(self, running: int) -> int:
        waiting = self._config.lines_waiting - len(self._unplaced)
        return min(self._config.lines_at_once - running, waiting)

    async def take(self, room: int, span: Span) -> list[Held]:
        self._turn += 1
        taken = await self._ledger.change(
            lambda db: lines.take(db, self._holder, room, self._turn, *span)
        )
        for held in taken:
            self._unplaced.add(held.key)
            self._request_ids[held.key] = request_id(f"{held.batch}-{held.number}")
        return taken

    async def answer(self, held: Held) -> Result:
        try:
            body = request_body(await self._ledger.aside(self._reader(held)))
        except (OSError, LineError) as error:
            raise BatonError(Code.NOT_FOUND, f"the line cannot be read again: {error}") from error
        client = self._request_ids[held.key]
        answer = await self._answers.answer(
            held.endpoint, body, held.owner, client, lambda: self._placed(held)
        )
        entry = entries.answered(held.batch, held.number, held.custom_id, client, answer)
        return Result(held, entry, failed=False, usage=entries.usage_of(answer))

    def failure(self, held: Held, error: BatonError) -> Result:
        about = (held.batch, held.number, held.custom_id, self._request_ids[held.key])
        return Result(held, entries.refused(*about, error), failed=True)

    def ended(self, held: Held) -> None:
        self._unplaced.discard(held.key)
        del self._request_ids[held.key]

    def _placed(self, held: Held) -> None:
        self._unplaced.discard(held.key)
        self._on_placed()

    def _reader(self, held: Held) -> Callable[[], bytes]:
        def read() -> bytes:
            with self._ledger.path_of(held.input).open("rb") as file:
                file.seek(held.at)
                return file.read(held.length)

        return read
