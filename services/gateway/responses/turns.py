"""What happens to a request of `/v1/responses` before it is answered, and to its answer.

Theory of operation: the body is read on the ledger's thread. The conversation that it goes on from
is put in front of its input, and the answer is written into the ledger before the client sees its
end, so that who has it can go on from it at once, at any gateway of the ledger. An answer that
breaks off is not stored. One of the background is written down before it has an answer; `wake` says
that there is something to run.
"""

from __future__ import annotations

import sqlite3
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from typing import NamedTuple

from msgspec import Raw

from common.clock import Clock
from common.config import GatewayConfig
from common.errors import BatonError, Code
from common.telemetry.log import Logger
from services.gateway.full_api.lazy import LazyApi
from services.gateway.full_api.port import ApiRequest, EventReply, JsonReply
from services.gateway.jobs.batch_work import HOUR_MS
from services.gateway.jobs.ledger import Ledger
from services.gateway.responses import conversation, records
from services.gateway.responses.conversation import FIRST_EVENTS, LAST_EVENTS, Turn
from services.gateway.responses.followers import Followers
from services.gateway.responses.records import Bounds, Record, Status


class Begun(NamedTuple):
    """A request whose conversation is known."""

    turn: Turn
    id: str
    owner: str
    #: The body that is to be answered.
    body: bytes
    items: bytes


class Counts:
    """Since the process started."""

    __slots__ = ("evicted", "stored", "unstored")

    def __init__(self) -> None:
        self.stored = 0
        #: Answered, but the ledger did not take them.
        self.unstored = 0
        #: Made room for newer ones.
        self.evicted = 0


class Turns:
    """A `ResponseStore`."""

    def __init__(
        self,
        ledger: Ledger,
        followers: Followers,
        config: GatewayConfig,
        *,
        wake: Callable[[], None],
        clock: Clock,
        log: Logger,
    ) -> None:
        jobs = config.jobs
        self.counts = Counts()
        self._ledger = ledger
        self._followers = followers
        self._bounds = Bounds(jobs.responses_max, jobs.background_max, jobs.quota_mib << 20)
        self._keep_ms = jobs.keep_hours * HOUR_MS
        self._body_bytes_max = config.body_bytes_max
        self._wake = wake
        self._clock = clock
        self._log = log

    async def answer(
        self, api_request: ApiRequest, api: LazyApi, model: str
    ) -> JsonReply | EventReply:
        """Raises BatonError."""
        body = api_request.body
        turn = await self._ledger.aside(lambda: conversation.read(body))
        if turn is None:
            return await api.answer(api_request)
        if not turn.is_stored and not turn.previous:
            api_request.body = await self._ledger.aside(lambda: conversation.request_of(turn, None))
            return await api.answer(api_request)
        begun = await self._ledger.read(lambda db: self._begin(db, turn, api_request))
        api_request.body = begun.body
        if turn.background:
            shown = await self._queue(begun, api_request, api, model)
            if not turn.stream:
                return JsonReply(shown)
            api_request.has_output = True  # nothing is awaited before the first event
            return EventReply(self._followers.follow(begun.id, begun.owner, -1))
        reply = await api.answer(api_request)
        if isinstance(reply, EventReply):
            return replace(reply, chunks=self._events(begun, reply.chunks))
        return JsonReply(await self._kept(begun, reply.body))

    def _begin(self, db: sqlite3.Connection, turn: Turn, api_request: ApiRequest) -> Begun:
        owner, now = api_request.origin.caller.key_id, self._clock.unix_ms()
        items, body = conversation.said(turn), conversation.request_of(turn, None)
        if items is not None and turn.previous:
            row = records.before(db, turn.previous, owner, now)
            items = conversation.after(row["items"], row["shown"]) + items
            body = self._joined(turn, items)
        kept = conversation.array(items or [])
        if turn.is_stored:
            records.check_room(db, owner, len(kept), self._bounds)
        return Begun(turn, f"resp_{api_request.origin.request_id}", owner, body, kept)

    def _joined(self, turn: Turn, items: list[Raw]) -> bytes:
        body = conversation.request_of(turn, items)
        if len(body) > self._body_bytes_max:
            sentence = (
                f"the conversation and this input have {len(body)} bytes together, at most"
                f" {self._body_bytes_max} (gateway.body_bytes_max); begin another one"
            )
            raise BatonError(Code.BODY_TOO_LARGE, sentence, param=conversation.PREVIOUS)
        return body

    async def _queue(
        self, begun: Begun, api_request: ApiRequest, api: LazyApi, model: str
    ) -> bytes:
        """The response while it waits to be run."""
        await api.check_shape(api_request)
        created = self._clock.unix_ms() // 1000
        about = (begun.turn, begun.id, model, created)
        shown = await self._ledger.aside(lambda: conversation.queued(*about))
        record = self._record(begun, Status.QUEUED, shown, begun.body)
        if begun.turn.stream:
            events = await self._ledger.aside(lambda: conversation.waiting_events(shown))
            record = record._replace(events=events)
        await self._insert(record)
        self._wake()
        return shown

    async def _kept(self, begun: Begun, answer: bytes) -> bytes:
        """The answer as it is stored; where it cannot be, it says so."""
        turn, stored = begun.turn, begun.turn.is_stored
        shown = await self._marked(begun, answer, stored=stored)
        if not stored:
            return shown
        try:
            status = Status(await self._ledger.aside(lambda: conversation.status_of(answer)))
            await self._insert(self._record(begun, status, shown))
        except (BatonError, ValueError) as error:
            self.counts.unstored += 1
            sentence = f"{begun.id} was answered, and is not stored: {error}"
            self._log.error("response.unstored", sentence=sentence)
            about = conversation.marks_of(turn, stored=False)
            return await self._ledger.aside(lambda: conversation.marked(answer, **about))
        return shown

    async def _marked(self, begun: Begun, answer: bytes, *, stored: bool) -> bytes:
        marks = conversation.marks_of(begun.turn, stored=stored)
        if stored:
            marks["id"] = begun.id
        return await self._ledger.aside(lambda: conversation.marked(answer, **marks))

    def _record(self, begun: Begun, status: Status, shown: bytes, request: bytes = b"") -> Record:
        now = self._clock.unix_ms()
        return Record(
            begun.id,
            begun.owner,
            status,
            begun.turn.background,
            now,
            now + self._keep_ms,
            shown,
            begun.items,
            request,
        )

    async def _insert(self, record: Record) -> None:
        evicted = await self._ledger.change(lambda db: records.insert(db, record, self._bounds))
        self.counts.stored += 1
        self.counts.evicted += evicted

    async def _events(self, begun: Begun, chunks: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
        async for chunk in chunks:
            has_response = chunk.startswith((*FIRST_EVENTS, *LAST_EVENTS))
            yield await self._event(begun, chunk) if has_response else chunk

    async def _event(self, begun: Begun, event: bytes) -> bytes:
        answer = await self._ledger.aside(lambda: conversation.response_in(event))
        if event.startswith(LAST_EVENTS):
            shown = await self._kept(begun, answer)
        else:
            shown = await self._marked(begun, answer, stored=begun.turn.is_stored)
        return await self._ledger.aside(lambda: conversation.with_response(event, shown))
