"""No line runs twice at once, none is lost, and a result is taken once, whoever dies."""

from __future__ import annotations

import json

import pytest

from services.gateway.jobs import batches, lines
from services.gateway.jobs.entries import Usage
from services.gateway.jobs.leases import LOSSES_MAX, Return
from services.gateway.jobs.lines import Line, LineState, Result
from tests.unit.services.gateway.jobs.ledgers import (
    batch_of,
    created,
    done,
    memory,
    row,
    take,
)


def test_lines_that_begin_alike_are_taken_one_after_the_other() -> None:
    db = memory()
    batch_of(db, 5)
    assert [held.number for held in take(db)] == [2, 4, 1, 3, 5]


def test_no_two_processes_take_the_same_line() -> None:
    db = memory()
    batch_of(db, 5)
    ours, theirs = take(db, "g0", 3), take(db, "g1", 3)
    assert len({held.number for held in ours + theirs}) == 5
    assert take(db, "g2") == []


def test_batches_take_turns() -> None:
    db = memory()
    first, second = batch_of(db, 6), batch_of(db, 6, now_ms=1)
    taken = take(db, most=5)
    assert [held.batch for held in taken] == [first] * 3 + [second] * 2
    taken = take(db, most=3, turn=1)
    assert [held.batch for held in taken] == [second] * 2 + [first]


def test_what_one_batch_does_not_need_another_gets() -> None:
    db = memory()
    batch_of(db, 1)
    second = batch_of(db, 6, now_ms=1)
    assert [held.batch for held in take(db, most=5)].count(second) == 4


def test_a_line_of_a_process_that_says_nothing_runs_again_and_its_late_result_is_refused() -> None:
    db = memory()
    batch = batch_of(db, 1)
    (lost,) = take(db, "g0", now_ms=0)
    assert lines.reclaim(db, 999) == []
    assert take(db, "g1", now_ms=999) == []
    assert lines.reclaim(db, 1000) == [batch]
    (again,) = take(db, "g1", now_ms=1000)
    assert again.fence == lost.fence + 1
    assert again.key != lost.key, "its former run may still be ending in the same process"
    assert lines.settle(db, [done(lost)]) == 1
    assert row(db, batch)["completed"] == 0
    assert lines.settle(db, [done(again)]) == 0
    assert lines.settle(db, [done(again), Return(again), done(lost, failed=True)]) == 3
    assert (row(db, batch)["completed"], row(db, batch)["failed"]) == (1, 0)
    assert db.execute("SELECT count(*) FROM results").fetchone()[0] == 1


def test_a_late_result_is_refused_also_while_nobody_has_taken_the_line_again() -> None:
    db = memory()
    batch_of(db, 1)
    (lost,) = take(db)
    lines.reclaim(db, 1000)
    assert lines.settle(db, [done(lost)]) == 1
    assert len(take(db, now_ms=1000)) == 1


def test_who_lives_goes_on_holding_his_lines() -> None:
    db = memory()
    batch = batch_of(db, 2)
    take(db, "g0", 1)
    take(db, "g1", 1)
    assert lines.renew(db, "g0", 2000) == {(batch, 2, 1)}
    assert lines.reclaim(db, 1500) == [batch]
    assert lines.reclaim(db, 2000) == [batch]


def test_lines_of_a_batch_that_ends_are_to_be_returned() -> None:
    db = memory()
    batch, other = batch_of(db, 2), batch_of(db, 1, now_ms=1)
    held = take(db)
    batches.cancel(db, batch, "a", 5)
    assert {one.batch for one in held} == {batch, other}
    assert lines.renew(db, "g0", 2000) == {(other, 1, 1)}, "only this one is to be run"
    assert take(db) == []


def test_a_line_that_is_lost_too_often_is_given_up() -> None:
    db = memory()
    batch = batch_of(db, 1)
    for _ in range(LOSSES_MAX):
        assert len(take(db)) == 1
        lines.reclaim(db, 1000)
    assert take(db) == []
    assert row(db, batch)["failed"] == 1
    entry = json.loads(db.execute("SELECT entry FROM results").fetchone()[0])
    assert (entry["custom_id"], entry["error"]["code"]) == ("id-1", "line_lost")


@pytest.mark.parametrize("counts", [True, False])
def test_a_returned_line_waits_again_and_only_a_failed_attempt_counts(counts: bool) -> None:
    db = memory()
    batch_of(db, 1)
    (held,) = take(db)
    lines.settle(db, [Return(held, counts=counts)])
    (again,) = take(db)
    assert again.failures == counts


def test_a_batch_whose_key_is_over_its_limit_waits() -> None:
    db = memory()
    batch_of(db, 3)
    other = batch_of(db, 1, "b", now_ms=1)
    (held,) = take(db, most=1)
    lines.settle(db, [Return(held, retry_ms=500)])
    assert {one.batch for one in take(db, now_ms=499)} == {other}
    assert len(take(db, now_ms=500)) == 3


def test_results_are_counted_and_close_the_batch() -> None:
    db = memory()
    batch = batch_of(db, 2)
    first, second = take(db)
    lines.settle(db, [Result(first, b"{}\n", failed=False, usage=Usage(7, 3, 5))])
    batches.close_if_done(db, batch, 9)
    assert row(db, batch)["status"] == "in_progress"
    lines.settle(db, [done(second, failed=True)])
    batches.close_if_done(db, batch, 10)
    found = row(db, batch)
    assert (found["status"], found["completed"], found["failed"]) == ("finalizing", 1, 1)
    assert (found["prompt_tokens"], found["cached_tokens"], found["completion_tokens"]) == (7, 3, 5)
    assert found["finalizing_ms"] == 10


def test_a_line_that_cannot_be_run_has_its_entry_at_once() -> None:
    db = memory()
    batch = created(db)
    taken = batches.take(db, "g0", 0, 1000)
    assert taken is not None
    planned = [Line(1, b"", 0, 3, None, b"bad\n"), Line(2, b"", 4, 9, "id")]
    lines.insert(db, batch, planned)
    batches.planned(db, taken, 0)
    assert [held.number for held in take(db)] == [2]
    entries = [tuple(one) for one in lines.outcomes_after(db, batch, 0, 10)]
    assert entries == [(1, None, 1, b"bad\n"), (2, "id", None, None)]
    assert [one["number"] for one in lines.outcomes_after(db, batch, 1, 10)] == [2]
    assert len(lines.outcomes_after(db, batch, 0, 1)) == 1


def test_the_states_of_a_line_end() -> None:
    assert set(lines.TRANSITIONS) == set(LineState)
    assert not lines.TRANSITIONS[LineState.DONE] | lines.TRANSITIONS[LineState.FAILED]
