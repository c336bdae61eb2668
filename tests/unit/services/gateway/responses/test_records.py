"""No response runs twice at once, none is lost, each has one answer, and a key has so many."""

from __future__ import annotations

import json
import sqlite3

import pytest

from common.errors import BatonError, Code
from services.gateway.jobs import files
from services.gateway.jobs.leases import LOSSES_MAX, Return
from services.gateway.responses import records
from services.gateway.responses.records import (
    TERMINAL,
    TRANSITIONS,
    Bounds,
    Held,
    Record,
    Result,
    Status,
)
from tests.unit.services.gateway.jobs.ledgers import memory, uploaded

BOUNDS = Bounds(responses=5, background=3, quota_bytes=10_000)
HOUR = 3_600_000


def put(
    db: sqlite3.Connection,
    response_id: str,
    status: Status = Status.QUEUED,
    owner: str = "a",
    now: int = 0,
    size: int = 100,
    bounds: Bounds = BOUNDS,
) -> int:
    shown = json.dumps({"id": response_id, "status": status.value}).encode()
    about = (response_id, owner, status, status not in TERMINAL, now, now + HOUR)
    padding = size - len(shown) - 2
    return records.insert(db, Record(*about, shown, b"[]", b"x" * padding), bounds)


def take(db: sqlite3.Connection, holder: str = "g0", most: int = 9, now: int = 0) -> list[Held]:
    return records.take(db, holder, most, now, now + 1000)


def ids(db: sqlite3.Connection) -> list[str]:
    return [row["id"] for row in db.execute("SELECT id FROM responses ORDER BY created_ms, id")]


def row(db: sqlite3.Connection, response_id: str) -> sqlite3.Row:
    return records.find(db, response_id, "a", 0)


def done(held: Held, status: Status = Status.COMPLETED) -> Result:
    return Result(held, status, b'{"output":[]}')


# ---------------------------------------------------------------- one holder


def test_no_two_processes_take_the_same_one() -> None:
    db = memory()
    for number in range(3):
        put(db, f"r{number}")
    ours, theirs = take(db, "g0", 2), take(db, "g1")
    assert [held.id for held in ours + theirs] == ["r0", "r1", "r2"]
    assert take(db, "g2") == []
    assert {row(db, held.id)["status"] for held in ours} == {Status.IN_PROGRESS}


def test_keys_take_turns_and_what_one_runs_counts() -> None:
    db = memory()
    for number in range(3):
        put(db, f"a{number}", owner="a", now=number)
    put(db, "b0", owner="b", now=9)
    assert [held.id for held in take(db, most=2)] == ["a0", "b0"]
    put(db, "b1", owner="b", now=10)
    put(db, "c0", owner="c", now=11)
    assert [held.id for held in take(db)] == ["c0", "a1", "b1", "a2"]


def test_an_answer_is_taken_once_and_under_the_last_number() -> None:
    db = memory()
    put(db, "r")
    (old,) = take(db, "g0")
    assert records.reclaim(db, 1000) == 1
    (new,) = take(db, "g1", now=1000)
    assert records.settle(db, [done(old)]) == 1
    assert records.settle(db, [done(new)]) == 0
    assert records.settle(db, [done(new, Status.FAILED), Return(new)]) == 2
    assert row(db, "r")["status"] == Status.COMPLETED
    assert json.loads(records.shown(row(db, "r"))) == {"output": [], "status": "completed"}


def test_an_answer_takes_the_place_of_the_request() -> None:
    db = memory()
    put(db, "r", size=5_000)
    assert files.used(db, "a") == 5_000
    records.settle(db, [done(take(db)[0])])
    found = row(db, "r")
    assert (found["request"], found["held_by"]) == (b"", "")
    assert files.used(db, "a") == len(found["items"]) + len(found["shown"])


def test_who_lives_goes_on_holding_and_sees_what_is_not_his_any_more() -> None:
    db = memory()
    for number in range(3):
        put(db, f"r{number}")
    take(db)
    records.cancel(db, "r0", "a", 0)
    records.delete(db, "r1", "a", 0)
    assert records.renew(db, "g0", 5_000) == {("r2", 1)}
    assert records.renew(db, "g1", 9_000) == set()
    assert records.reclaim(db, 4_999) == 0
    assert records.reclaim(db, 5_000) == 1


def test_one_that_is_lost_too_often_fails() -> None:
    db = memory()
    put(db, "r")
    for _ in range(LOSSES_MAX):
        assert len(take(db)) == 1
        records.reclaim(db, 1_000)
    assert take(db) == []
    shown = json.loads(records.shown(row(db, "r")))
    assert shown["status"] == "failed"
    assert str(LOSSES_MAX) in shown["error"]["message"]


def test_a_returned_one_waits_with_those_of_its_key() -> None:
    db = memory()
    put(db, "r0")
    put(db, "r1", now=1)
    put(db, "other", owner="b", now=2)
    (held,) = take(db, most=1)
    records.settle(db, [Return(held, counts=True, retry_ms=500)])
    assert [one.id for one in take(db, now=499)] == ["other"]
    (again, _) = take(db, now=500)
    assert (again.id, again.failures) == ("r0", 1)
    records.settle(db, [Return(again)])
    assert take(db, now=500)[0].failures == 1, "one that was broken off did not fail"


def test_nothing_waits_or_runs() -> None:
    db = memory()
    assert records.is_quiet(db)
    put(db, "r")
    assert not records.is_quiet(db)
    (held,) = take(db)
    assert not records.is_quiet(db)
    records.settle(db, [done(held)])
    assert records.is_quiet(db)


# ---------------------------------------------------------------- what clients ask for


def test_what_is_another_keys_or_expired_is_not_there() -> None:
    db = memory()
    put(db, "r", Status.COMPLETED)
    for about in (("r", "b", 0), ("r", "a", HOUR), ("q", "a", 0)):
        for ask in (records.find, records.before, records.delete, records.cancel):
            with pytest.raises(BatonError) as caught:
                ask(db, *about)
            assert caught.value.code is Code.NOT_FOUND
    assert records.find(db, "r", "a", HOUR - 1)["id"] == "r"


@pytest.mark.parametrize("status", list(Status))
def test_a_conversation_goes_on_from_an_answer(status: Status) -> None:
    db = memory()
    put(db, "r", status)
    if status in (Status.COMPLETED, Status.INCOMPLETE):
        assert records.before(db, "r", "a", 0)["id"] == "r"
        return
    with pytest.raises(BatonError) as caught:
        records.before(db, "r", "a", 0)
    assert (caught.value.code, caught.value.param) == (Code.INVALID_REQUEST, "previous_response_id")
    assert status.value in caught.value.message
    assert ("ask for it until" in caught.value.message) == (status not in TERMINAL)


def test_cancelled_ends_what_waits_or_runs_and_may_be_said_twice() -> None:
    db = memory()
    put(db, "r")
    (held,) = take(db)
    for _ in range(2):
        assert records.cancel(db, "r", "a", 0)["status"] == Status.CANCELLED
    assert records.settle(db, [done(held)]) == 1
    found = row(db, "r")
    assert (found["status"], found["request"]) == (Status.CANCELLED, b"")
    assert found["bytes"] == len(found["shown"]) + len(found["items"])
    put(db, "s")
    records.settle(db, [done(take(db)[0])])
    with pytest.raises(BatonError, match="it is completed"):
        records.cancel(db, "s", "a", 0)


def test_what_ended_stays_so() -> None:
    assert set(TRANSITIONS) == set(Status)
    assert {status for status, after in TRANSITIONS.items() if not after} == TERMINAL


# ---------------------------------------------------------------- bounds


def test_the_oldest_that_is_over_makes_room() -> None:
    db = memory()
    put(db, "old", now=0)
    for number in range(4):
        assert put(db, f"r{number}", Status.COMPLETED, now=number + 1) == 0
    put(db, "other", Status.COMPLETED, owner="b")
    assert put(db, "new", Status.COMPLETED, now=9) == 1
    assert ids(db) == ["old", "other", "r1", "r2", "r3", "new"]


def test_bytes_are_bounded_together_with_files() -> None:
    db = memory()
    uploaded(db, size=8_000)
    put(db, "r0", Status.COMPLETED, size=900)
    put(db, "r1", Status.COMPLETED, size=1_000, now=1)
    assert put(db, "r2", Status.COMPLETED, size=1_001, now=2) == 2
    assert ids(db) == ["r2"]
    with pytest.raises(BatonError) as caught:
        put(db, "r3", Status.COMPLETED, size=2_001)
    assert (caught.value.code, caught.value.param) == (Code.BODY_TOO_LARGE, "store")
    assert "quota_mib" in caught.value.message
    assert ids(db) == ["r2"], "nothing makes room in vain"
    records.check_room(db, "a", 2_000, BOUNDS)
    with pytest.raises(BatonError, match="set store to false"):
        records.check_room(db, "a", 2_001, BOUNDS)
    with pytest.raises(BatonError, match="stored responses"):
        files.grow(db, files.new_id(), "a", 1_000, BOUNDS.quota_bytes, 0)


def test_so_many_of_a_key_are_not_over() -> None:
    db = memory()
    for number in range(3):
        put(db, f"r{number}")
    put(db, "other", owner="b")
    with pytest.raises(BatonError) as caught:
        put(db, "r3")
    assert caught.value.code is Code.RATE_LIMITED
    assert caught.value.retry_after_ms
    put(db, "done", Status.COMPLETED)
    records.settle(db, [done(held) for held in take(db) if held.id == "r0"])
    put(db, "r3")
    with pytest.raises(BatonError) as caught:
        put(db, "r4", bounds=Bounds(responses=2, background=9, quota_bytes=10_000))
    assert caught.value.code is Code.RATE_LIMITED


def test_expiry_deletes_and_ends_what_waits() -> None:
    db = memory()
    put(db, "done", Status.COMPLETED)
    put(db, "waits")
    put(db, "later", Status.COMPLETED, now=1)
    records.expire(db, HOUR - 1, HOUR)
    assert ids(db) == ["done", "waits", "later"]
    records.expire(db, HOUR, HOUR)
    assert ids(db) == ["waits", "later"]
    shown = json.loads(records.shown(records.find(db, "waits", "a", HOUR)))
    assert shown["status"] == "failed"
    assert "keep_hours" in shown["error"]["message"]
    assert take(db) == []
    records.expire(db, 2 * HOUR, HOUR)
    assert ids(db) == []
