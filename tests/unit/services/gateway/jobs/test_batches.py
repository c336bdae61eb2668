"""The states of a batch, who holds it, and that what is one key's does not exist for another."""

from __future__ import annotations

import pytest

from common.errors import BatonError, Code
from services.gateway.jobs import batches, files, lines
from services.gateway.jobs.batches import LostHoldError, Status
from tests.unit.services.gateway.jobs.ledgers import (
    HOUR,
    batch_of,
    created,
    done,
    memory,
    row,
    take,
    uploaded,
)


def test_one_process_at_a_time_holds_a_batch() -> None:
    db = memory()
    batch = created(db)
    first = batches.take(db, "g0", 0, 1000)
    assert first is not None
    assert first["id"] == batch
    assert batches.take(db, "g1", 999, 2000) is None
    batches.hold(db, first, 1500)
    assert batches.take(db, "g1", 1000, 2000) is None
    second = batches.take(db, "g1", 1500, 2500)
    assert second is not None
    with pytest.raises(LostHoldError):
        batches.hold(db, first, 9000)
    with pytest.raises(LostHoldError):
        batches.planned(db, first, 2000)
    with pytest.raises(LostHoldError):
        batches.refuse(db, first, [], 2000)
    with pytest.raises(LostHoldError):
        batches.finish(db, first, (None, None), 0, 2000)
    batches.let_go(db, first, 0)
    assert batches.take(db, "g2", 1600, 2600) is None, "only its holder lets it go"
    batches.let_go(db, second, 1700)
    assert batches.take(db, "g2", 1700, 2700) is not None


def test_a_batch_that_is_cancelled_while_it_is_planned_has_no_lines_to_run() -> None:
    db = memory()
    batch = created(db)
    taken = batches.take(db, "g0", 0, 1000)
    assert taken is not None
    batches.cancel(db, batch, "a", 5)
    with pytest.raises(LostHoldError):
        batches.planned(db, taken, 6)
    again = batches.take(db, "g0", 6, 1006)
    assert again is not None
    batches.finish(db, again, (None, None), 0, 7)
    shown = batches.shown(row(db, batch))
    assert (shown["status"], shown["cancelled_at"]) == ("cancelled", 0)


def test_its_files_are_written_once_no_line_of_it_runs() -> None:
    db = memory()
    batch = batch_of(db, 2)
    held = take(db, most=1)
    batches.cancel(db, batch, "a", 5)
    assert batches.take(db, "g0", 5, 1005) is None
    lines.settle(db, [done(held[0])])
    taken = batches.take(db, "g0", 5, 1005)
    assert taken is not None
    batches.finish(db, taken, ("file-1", "file-2"), 1, 6_000)
    shown = batches.shown(row(db, batch))
    assert shown["request_counts"] == {"total": 2, "completed": 1, "failed": 1}
    assert (shown["output_file_id"], shown["error_file_id"]) == ("file-1", "file-2")
    assert (shown["cancelled_at"], shown["completed_at"]) == (6, None)
    for table in ("lines", "results"):
        assert db.execute(f"SELECT count(*) FROM {table}").fetchone()[0] == 0  # noqa: S608


def test_a_batch_whose_window_is_over_ends_and_is_forgotten_later() -> None:
    db = memory()
    batch = batch_of(db, 2)
    assert batches.expire(db, HOUR - 1, HOUR) == []
    assert batches.expire(db, HOUR, HOUR) == [batch]
    assert take(db, now_ms=HOUR) == []
    taken = batches.take(db, "g0", HOUR, HOUR + 1000)
    assert taken is not None
    batches.finish(db, taken, (None, "file-2"), 2, HOUR)
    assert row(db, batch)["status"] == "expired"
    assert batches.is_quiet(db)
    batches.expire(db, 2 * HOUR - 1, HOUR)
    assert row(db, batch) is not None
    batches.expire(db, 2 * HOUR, HOUR)
    assert row(db, batch) is None


def test_all_lines_done_before_the_first_is_run_is_an_end() -> None:
    db = memory()
    batch = batch_of(db, 0)
    assert row(db, batch)["status"] == "finalizing"
    assert not batches.is_quiet(db)


def test_what_is_over_cannot_be_cancelled() -> None:
    db = memory()
    batch = batch_of(db, 0)
    with pytest.raises(BatonError, match="it is finalizing"):
        batches.cancel(db, batch, "a", 0)
    other = batch_of(db, 1)
    assert batches.cancel(db, other, "a", 1)["status"] == "cancelling"
    assert batches.cancel(db, other, "a", 2)["cancelling_ms"] == 1, "twice is once"


def test_a_key_has_so_many_batches_at_once() -> None:
    db = memory()
    batch = created(db, most=1)
    with pytest.raises(BatonError, match="batches_max") as caught:
        created(db, most=1)
    assert caught.value.code is Code.RATE_LIMITED
    created(db, "b", now_ms=1, most=1)
    taken = batches.take(db, "g0", 0, 1000)
    assert taken is not None
    batches.refuse(db, taken, [{"code": "c"}], 1)
    assert batches.shown(row(db, batch))["errors"]["data"] == [{"code": "c"}]
    created(db, most=1)


def test_pages_are_of_one_key_and_the_newest_come_first() -> None:
    db = memory()
    ours = [created(db, now_ms=n) for n in range(3)]
    theirs = created(db, "b")
    assert [one["id"] for one in batches.page(db, "a", "", 1)] == ours[:0:-1]
    assert [one["id"] for one in batches.page(db, "a", ours[1], 5)] == ours[:1]
    assert batches.page(db, "a", theirs, 5) == []
    with pytest.raises(BatonError, match="there is no batch"):
        batches.find(db, theirs, "a")
    with pytest.raises(BatonError, match="there is no batch"):
        batches.cancel(db, theirs, "a", 0)


# ---------------------------------------------------------------- files


def test_files_of_another_key_do_not_exist() -> None:
    db = memory()
    file_id = uploaded(db)
    assert files.find(db, file_id, "a")["bytes"] == 10
    for call in (files.find, files.delete):
        with pytest.raises(BatonError) as caught:
            call(db, file_id, "b")
        assert caught.value.code is Code.NOT_FOUND
    assert files.page(db, "b", "", "", 5, newest=True) == []
    assert files.page(db, "b", "", file_id, 5, newest=True) == []


@pytest.mark.parametrize("newest", [True, False])
def test_pages_of_files(newest: bool) -> None:
    db = memory()
    ids = sorted(uploaded(db) for _ in range(3))
    ids = ids[::-1] if newest else ids
    page = files.page(db, "a", files.BATCH, "", 1, newest=newest)
    assert [one["id"] for one in page] == ids[:2]
    page = files.page(db, "a", "", ids[1], 5, newest=newest)
    assert [one["id"] for one in page] == ids[2:]
    assert files.page(db, "a", files.OUTPUT, "", 5, newest=newest) == []


def test_uploads_at_the_same_time_share_a_quota() -> None:
    db = memory()
    first, second, other = (files.new_id() for _ in range(3))
    for file_id, owner in ((first, "a"), (second, "a"), (other, "b")):
        files.begin(db, file_id, owner, "n", 0)
    files.grow(db, first, "a", 60, 100, 0)
    files.grow(db, other, "b", 100, 100, 0)
    with pytest.raises(BatonError, match="quota_mib") as caught:
        files.grow(db, second, "a", 41, 100, 0)
    assert caught.value.http.status == 413
    files.grow(db, second, "a", 40, 100, 0)
    files.drop(db, first)
    with pytest.raises(BatonError, match="there is no file"):
        files.grow(db, first, "a", 1, 100, 0)


def test_a_file_is_seen_once_it_is_whole_and_until_it_expires() -> None:
    db = memory()
    file_id = files.new_id()
    files.begin(db, file_id, "a", "n" * 600, 0)
    with pytest.raises(BatonError):
        files.find(db, file_id, "a")
    assert files.page(db, "a", "", "", 5, newest=True) == []
    files.complete(db, file_id, files.BATCH, 5000)
    shown = files.shown(files.find(db, file_id, "a"))
    assert (shown["expires_at"], len(shown["filename"])) == (5, files.NAME_CHARS_MAX)
    assert files.expire(db, 4999) == []
    assert files.expire(db, 5000) == [file_id]


def test_an_upload_of_which_nothing_comes_is_given_up() -> None:
    db = memory()
    file_id = files.new_id()
    files.begin(db, file_id, "a", "n", 0)
    files.grow(db, file_id, "a", 1, 100, 500)
    assert files.expire(db, 499 + files.STALE_MS) == []
    assert files.expire(db, 500 + files.STALE_MS) == [file_id]


def test_a_file_that_a_batch_reads_stays() -> None:
    db = memory()
    batch = batch_of(db, 1)
    file_id = row(db, batch)["input"]
    with pytest.raises(BatonError, match="still reads this file"):
        files.delete(db, file_id, "a")
    assert files.expire(db, 11 * HOUR) == []
    batches.expire(db, 2 * HOUR, HOUR)
    taken = batches.take(db, "g0", 2 * HOUR, 3 * HOUR)
    assert taken is not None
    batches.finish(db, taken, (None, None), 1, 2 * HOUR)
    files.delete(db, file_id, "a")


def test_names_in_the_folder_that_no_file_has() -> None:
    db = memory()
    file_id = uploaded(db)
    assert files.strangers(db, [file_id, f"{file_id}.3", "x"]) == [f"{file_id}.3", "x"]


def test_the_states_of_a_batch_end() -> None:
    assert set(batches.TRANSITIONS) == set(Status)
    assert {status for status in Status if not batches.TRANSITIONS[status]} == batches.TERMINAL
