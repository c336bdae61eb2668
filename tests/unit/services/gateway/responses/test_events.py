"""A number names one event of one run, and what is told is counted, bounded and deleted."""

from __future__ import annotations

import json
import sqlite3
from typing import Any

import pytest

from common.errors import BatonError, Code
from services.gateway.jobs import files
from services.gateway.jobs.leases import Return
from services.gateway.responses import conversation, events, records
from services.gateway.responses.events import COUNTED_EVERY, PAGE_MAX
from services.gateway.responses.records import Bounds, Held, Record, Result, Status
from tests.unit.services.gateway.jobs.ledgers import memory

BOUNDS = Bounds(responses=5, background=3, quota_bytes=100_000)
HOUR = 3_600_000
SHOWN = b'{"id":"r","created_at":1,"background":true,"store":true,"previous_response_id":null}'


@pytest.fixture
def db() -> sqlite3.Connection:
    db = memory()
    put(db)
    return db


def put(db: sqlite3.Connection, response_id: str = "r", size: int = 0) -> None:
    about = (response_id, "a", Status.QUEUED, True, 0, HOUR, SHOWN, b"[]", bytes(size))
    told = conversation.waiting_events(SHOWN)
    records.insert(db, Record(*about, told), BOUNDS)


def take(db: sqlite3.Connection) -> Held:
    (held,) = records.take(db, "g0", 1, 0, 1_000)
    return events.begin(db, held)


def deltas(*texts: str) -> list[bytes]:
    return [conversation.event_of("response.output_text.delta", 0, delta=text) for text in texts]


def told(db: sqlite3.Connection, after: int = -1) -> list[Any]:
    page = events.page(db, "r", "a", 0, after)
    found = [json.loads(event.partition(b"data: ")[2]) for event in page.events]
    assert page.last == (found[-1]["sequence_number"] if found else after)
    return [(event["sequence_number"], event.get("delta", event["type"])) for event in found]


def used(db: sqlite3.Connection) -> int:
    """As it is counted."""
    (counted, true) = db.execute(
        "SELECT sum(bytes), sum(length(shown) + length(items) + length(request))"
        " + (SELECT coalesce(sum(length(event)), 0) FROM response_events) FROM responses"
    ).fetchone()
    assert counted == true
    assert files.used(db, "a") == counted
    return int(counted)


def test_numbers_go_on_over_runs_and_the_events_of_a_run_that_is_over_are_gone(
    db: sqlite3.Connection,
) -> None:
    before = [(0, "response.created"), (1, "response.queued")]
    used(db)
    first = take(db)
    assert first.stream_from == 2
    assert told(db) == before
    events.append(db, first, 2, deltas("a", "b"))
    events.append(db, first, 4, deltas("c"))
    assert told(db) == [*before, (2, "a"), (3, "b"), (4, "c")]
    assert told(db, 3) == [(4, "c")]
    records.settle(db, [Return(first)])
    assert told(db) == before, "that run is over"
    second = take(db)
    assert second.stream_from == 5
    assert told(db) == before
    assert db.execute("SELECT max(number) FROM response_events").fetchone()[0] == 1
    events.append(db, first, 5, deltas("late"))
    events.append(db, second, 5, deltas("d"))
    assert told(db) == [*before, (5, "d")]
    assert told(db, 1) == [(5, "d")]
    records.settle(db, [Return(second)])
    third = take(db)
    records.settle(db, [Return(third)])
    assert take(db).stream_from == third.stream_from == 6, "one that said nothing costs no number"


@pytest.mark.parametrize("after", [2, 3, 4])
def test_who_knows_an_earlier_run_is_told_nothing_of_the_next(
    db: sqlite3.Connection, after: int
) -> None:
    held = take(db)
    events.append(db, held, 2, deltas("a", "b", "c"))
    records.settle(db, [Return(held)])
    refuses(db, after)
    again = take(db)
    refuses(db, after)
    events.append(db, again, 5, deltas("d"))
    refuses(db, after)
    records.settle(db, [Result(again, Status.COMPLETED, SHOWN)])
    refuses(db, after)


def refuses(db: sqlite3.Connection, after: int) -> None:
    with pytest.raises(BatonError) as caught:
        told(db, after)
    assert (caught.value.code, caught.value.param) == (Code.STREAM_GONE, "starting_after")
    assert events.WAY_OUT in caught.value.message


@pytest.mark.parametrize(
    ("status", "name"),
    [
        (Status.COMPLETED, "completed"),
        (Status.INCOMPLETE, "incomplete"),
        (Status.FAILED, "failed"),
        (Status.CANCELLED, "failed"),
    ],
)
def test_the_last_event_is_made_of_how_it_ended(
    db: sqlite3.Connection, status: Status, name: str
) -> None:
    held = take(db)
    events.append(db, held, 2, deltas("a"))
    assert not events.page(db, "r", "a", 0, 2).is_over
    if status is Status.CANCELLED:
        records.cancel(db, "r", "a", 0)
    else:
        records.settle(db, [Result(held, status, SHOWN)])
    events.append(db, held, 3, deltas("late"))
    assert told(db, 1) == [(2, "a"), (3, f"response.{name}")]
    assert told(db, 3) == []
    for after in (1, 2, 3):
        assert events.page(db, "r", "a", 0, after).is_over
    last = events.page(db, "r", "a", 0, 2).events[0]
    assert json.loads(conversation.response_in(last))["status"] == status
    used(db)


def test_one_that_never_ran_has_a_last_event_too(db: sqlite3.Connection) -> None:
    records.cancel(db, "r", "a", 0)
    assert told(db) == [(0, "response.created"), (1, "response.queued"), (2, "response.failed")]


def test_a_number_that_was_not_told_is_refused(db: sqlite3.Connection) -> None:
    held = take(db)
    events.append(db, held, 2, deltas("a"))
    for last in (2, 3):
        assert told(db, last) == []
        with pytest.raises(BatonError, match=f"the last event of this stream has number {last}"):
            told(db, last + 1)
        records.settle(db, [Result(held, Status.COMPLETED, SHOWN)])


def test_only_whose_it_is_is_told_and_only_what_was_made_to_be(db: sqlite3.Connection) -> None:
    for about in (("r", "b", 0), ("r", "a", HOUR), ("q", "a", 0)):
        with pytest.raises(BatonError) as caught:
            events.page(db, *about, -1)
        assert caught.value.code is Code.NOT_FOUND
    db.execute("UPDATE responses SET stream_from = NULL")
    db.execute("DELETE FROM response_events")
    with pytest.raises(BatonError) as caught:
        events.page(db, "r", "a", 0, -1)
    assert (caught.value.code, caught.value.param) == (Code.INVALID_REQUEST, "stream")


def test_many_are_told_in_pages(db: sqlite3.Connection) -> None:
    held = take(db)
    texts = [str(number) for number in range(2, 2 * PAGE_MAX)]
    events.append(db, held, 2, deltas(*texts))
    records.settle(db, [Result(held, Status.COMPLETED, SHOWN)])
    found, after, pages = 0, -1, 0
    while True:
        page = events.page(db, "r", "a", 0, after)
        found, after, pages = found + len(page.events), page.last, pages + 1
        assert page.is_whole == page.is_over
        if page.is_over:
            break
    assert (found, after, pages) == (2 * PAGE_MAX + 1, 2 * PAGE_MAX, 3)


def test_an_error_that_was_written_is_the_end_until_there_is_another_one(
    db: sqlite3.Connection,
) -> None:
    held = take(db)
    error = conversation.error_event(BatonError(Code.STREAM_GONE, "too many"), 0)
    events.append(db, held, 2, [*deltas("a"), error])
    assert told(db, 1) == [(2, "a"), (3, "error")]
    assert events.page(db, "r", "a", 0, 1).is_over
    assert not events.page(db, "r", "a", 0, 3).is_over
    records.settle(db, [Result(held, Status.COMPLETED, SHOWN)])
    assert told(db, 2) == [(3, "error")]
    assert told(db, 3) == [(4, "response.completed")]


def test_their_bytes_count_now_and_then_while_it_runs(db: sqlite3.Connection) -> None:
    held = take(db)
    events.append(db, held, 2, deltas(*"a" * (COUNTED_EVERY - 3)))
    events.append(db, held, COUNTED_EVERY - 1, deltas("b"))
    used(db)
    events.append(db, held, COUNTED_EVERY, deltas("c"))
    with pytest.raises(AssertionError):
        used(db)
    events.append(db, held, COUNTED_EVERY + 1, deltas(*"d" * COUNTED_EVERY))
    used(db)
    records.settle(db, [Return(held)])
    take(db)
    used(db)


def test_what_is_written_twice_is_there_once(db: sqlite3.Connection) -> None:
    held = take(db)
    for _ in range(2):
        events.append(db, held, 2, deltas("a", "b"))
    assert told(db, 1) == [(2, "a"), (3, "b")]


@pytest.mark.parametrize("how", ["delete", "expire", "room"])
def test_they_are_gone_with_their_response(db: sqlite3.Connection, how: str) -> None:
    held = take(db)
    events.append(db, held, 2, deltas("a" * 50_000))
    records.settle(db, [Result(held, Status.COMPLETED, SHOWN)])
    assert used(db) > 50_000
    if how == "delete":
        records.delete(db, "r", "a", 0)
    elif how == "expire":
        records.expire(db, HOUR, HOUR)
    else:
        put(db, "s", size=50_000)
    rows = db.execute("SELECT DISTINCT response FROM response_events").fetchall()
    assert [row["response"] for row in rows] == ["s"] * (how == "room")


def test_a_response_in_an_event_of_a_run_is_the_one_that_is_stored(db: sqlite3.Connection) -> None:
    given = conversation.event_of("response.in_progress", 1, response={"id": "x", "status": "s"})
    events.append(db, take(db), 2, [given])
    (event,) = events.page(db, "r", "a", 0, 1).events
    shown = json.loads(conversation.response_in(event))
    assert shown == json.loads(SHOWN) | {"status": "s"}
    assert event.startswith(b"event: response.in_progress\ndata: {")
    assert event.endswith(b"}\n\n")
