"""How responses of the background are taken, answered and written down (`jobs.leases.Work`).

A process runs at most `background_at_once`, as requests of their key's own class; what waits beyond
that waits in the ledger, and any process of the host takes it.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Sequence

from common.config import JobsConfig
from common.errors import BatonError, Code
from services.gateway.api.intake import request_id
from services.gateway.api.routes import Route
from services.gateway.jobs.batch_work import HOUR_MS
from services.gateway.jobs.leases import Key, Return, Span
from services.gateway.jobs.ledger import Ledger
from services.gateway.jobs.line_answers import LineAnswers
from services.gateway.responses import conversation, events, records
from services.gateway.responses.conversation import LAST_EVENTS
from services.gateway.responses.event_writer import EventWriter
from services.gateway.responses.records import Held, Result, Status


class BackgroundWork:
    """`holder`: the process. `on_ended` is called with the id of each that was settled."""

    name = "responses"

    def __init__(
        self,
        ledger: Ledger,
        answers: LineAnswers,
        writer: EventWriter,
        config: JobsConfig,
        *,
        holder: str,
        on_ended: Callable[[str], None],
    ) -> None:
        self._ledger = ledger
        self._answers = answers
        self._writer = writer
        self._on_ended = on_ended
        self._config = config
        self._holder = holder

    async def is_quiet(self) -> bool:
        return await self._ledger.read(records.is_quiet)

    async def settle(self, outcomes: Sequence[Result | Return[Held]]) -> int:
        late = await self._ledger.change(lambda db: records.settle(db, outcomes))
        for outcome in outcomes:
            self._on_ended(outcome.held.id)
        return late

    async def tend(self, span: Span) -> tuple[set[Key], int]:
        """Also forgets those whose time is over. What is held is renewed first, so that it is not
        reclaimed."""

        def tend(db: sqlite3.Connection) -> tuple[set[Key], int]:
            held = records.renew(db, self._holder, span.until)
            records.expire(db, span.now, self._config.keep_hours * HOUR_MS)
            return held, records.reclaim(db, span.now)

        return await self._ledger.change(tend)

    def room(self, running: int) -> int:
        return self._config.background_at_once - running

    async def take(self, room: int, span: Span) -> list[Held]:
        def take(db: sqlite3.Connection) -> list[Held]:
            taken = records.take(db, self._holder, room, *span)
            return [events.begin(db, held) for held in taken]

        return await self._ledger.change(take)

    async def answer(self, held: Held) -> Result:
        if held.stream_from is None:
            answer = await self._asked(held, None)
            return await self._ledger.aside(lambda: _answered(held, answer))
        with self._writer.run(held) as run:
            last = await self._asked(held, run.add)
            await run.is_written.wait()
        if not last.startswith(LAST_EVENTS):
            raise BatonError(Code.STREAM_INTERRUPTED, "the stream has no last event")
        return await self._ledger.aside(lambda: _answered(held, conversation.response_in(last)))

    async def _asked(self, held: Held, on_event: Callable[[bytes], None] | None) -> bytes:
        return await self._answers.answer(
            Route.RESPONSES.value,
            held.request,
            held.owner,
            request_id(held.id.removeprefix("resp_")),
            lambda: None,
            is_line=False,
            on_event=on_event,
        )

    def failure(self, held: Held, error: BatonError) -> Result:
        return Result(held, Status.FAILED, conversation.failed(held.shown, error))

    def ended(self, held: Held) -> None:
        pass


def _answered(held: Held, answer: bytes) -> Result:
    status = Status(conversation.status_of(answer))
    return Result(held, status, conversation.finished(held.shown, answer))
