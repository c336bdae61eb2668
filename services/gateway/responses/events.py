"""The table of the events of responses that are streamed from the background. Functions take the
ledger's connection in a transaction.

Theory of operation: an event has the number that its client sees as `sequence_number`, and no
number is used twice for one response. The first `BEFORE_RUNS` say that it was made and waits. Each
run goes on with the number after the last of the run before it, whose events are told no more and
are deleted. So the number that a client has seen last tells whether it knows the run that is told
now, and no text of one run is joined to that of another. The row has the number that its latest run
began with (`stream_from`); events are taken from whoever holds the row, under his fencing number.

The last event is not in the table: it is made of the response as it ended, whoever ended it.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from typing import NamedTuple

from msgspec import Raw

from common.errors import BatonError, Code
from services.gateway.responses import conversation, records
from services.gateway.responses.conversation import ERROR_EVENT
from services.gateway.responses.records import TERMINAL, Held, Status

#: Events that do not belong to a run.
BEFORE_RUNS = 2
#: Events after which the bytes of a row are counted anew, since each time its conversation is
#: written again. They are exact when it is over.
COUNTED_EVERY = 256
#: Events that are read in one transaction.
PAGE_MAX = 200
WAY_OUT = "get the response without stream, where it is whole once it is over"
#: OpenAI has no event for one that was cancelled; the status of the response says it.
ENDS: dict[Status, str] = {
    Status.COMPLETED: "response.completed",
    Status.INCOMPLETE: "response.incomplete",
    Status.FAILED: "response.failed",
    Status.CANCELLED: "response.failed",
}


class Page(NamedTuple):
    """`last`: number of the last event that a client has with these. `is_whole`: there are no more
    now. `is_over`: there will be no more."""

    events: list[bytes]
    last: int
    is_whole: bool
    is_over: bool


# ---------------------------------------------------------------- who runs it


def begin(db: sqlite3.Connection, held: Held) -> Held:
    """A run begins: what an earlier one said is deleted."""
    if held.stream_from is None:
        return held
    earlier = (held.id, held.stream_from)
    (last,) = db.execute(
        "SELECT max(number) FROM response_events WHERE response = ? AND number >= ?", earlier
    ).fetchone()
    if last is None:
        return held
    db.execute("DELETE FROM response_events WHERE response = ? AND number >= ?", earlier)
    db.execute("UPDATE responses SET stream_from = ? WHERE id = ?", (last + 1, held.id))
    records.recount(db, held.id)
    return held._replace(stream_from=last + 1)


def append(db: sqlite3.Connection, held: Held, first: int, events: Sequence[bytes]) -> None:
    """`events`: as vLLM wrote them. `first`: number of the first. What comes from a former holder,
    or after the end, is not taken."""
    holds = db.execute(
        "SELECT 1 FROM responses WHERE id = ? AND fence = ? AND status = 'in_progress'",
        (held.id, held.fence),
    ).fetchone()
    if holds is None:
        return
    rows = [
        (held.id, number, conversation.event_of_run(event, number, held.shown))
        for number, event in enumerate(events, first)
    ]
    # What was written, and could not be known to be, is written again.
    db.executemany("INSERT OR REPLACE INTO response_events VALUES (?, ?, ?)", rows)
    if first // COUNTED_EVERY != (first + len(rows)) // COUNTED_EVERY:
        records.recount(db, held.id)


# ---------------------------------------------------------------- who follows it


def page(db: sqlite3.Connection, response_id: str, owner: str, now_ms: int, after: int) -> Page:
    """The events after that number; -1: from the first. Raises BatonError(NOT_FOUND), also for a
    response of another key, INVALID_REQUEST if it has no events or not so many, and STREAM_GONE if
    `after` is of an earlier run."""
    row = db.execute(
        "SELECT status, stream_from FROM responses WHERE id = ? AND owner = ? AND expires_ms > ?",
        (response_id, owner, now_ms),
    ).fetchone()
    if row is None:
        raise records.unknown(response_id)
    status, stream_from = Status(row["status"]), row["stream_from"]
    (newest,) = db.execute(
        "SELECT max(number) FROM response_events WHERE response = ?", (response_id,)
    ).fetchone()
    if stream_from is None:
        sentence = "it is streamed only if it was made with background: true and stream: true"
        raise BatonError(Code.INVALID_REQUEST, sentence, param="stream")
    end = max(newest + 1, stream_from)
    if status is Status.QUEUED:
        stream_from = end  # of the run to come
    _check(after, stream_from, end if status in TERMINAL else newest)
    rows = db.execute(
        "SELECT number, event FROM response_events WHERE response = ? AND number > ?"
        " AND (number < ? OR number >= ?) ORDER BY number LIMIT ?",
        (response_id, after, BEFORE_RUNS, stream_from, PAGE_MAX),
    ).fetchall()
    events, last = [row["event"] for row in rows], rows[-1]["number"] if rows else after
    cut = bool(events) and events[-1].startswith(ERROR_EVENT)
    if cut or len(events) == PAGE_MAX:
        return Page(events, last, is_whole=cut, is_over=cut)
    if status in TERMINAL and after < end:
        shown = records.shown(records.find(db, response_id, owner, now_ms))
        events.append(conversation.event_of(ENDS[status], end, response=Raw(shown)))
        last = end
    return Page(events, last, is_whole=True, is_over=status in TERMINAL)


def _check(after: int, stream_from: int, last: int) -> None:
    if BEFORE_RUNS <= after < stream_from:
        sentence = (
            f"event {after} is of an earlier run: the gateway that ran this response was lost or"
            f" gave it back, and it was begun anew, maybe with another text; {WAY_OUT}"
        )
        raise BatonError(Code.STREAM_GONE, sentence, param="starting_after")
    if after > last:
        sentence = f"starting_after is {after}, and the last event of this stream has number {last}"
        raise BatonError(Code.INVALID_REQUEST, sentence, param="starting_after")
