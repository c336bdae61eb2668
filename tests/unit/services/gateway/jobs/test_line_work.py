"""How many lines of a process wait at the router."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from sqlite3 import Connection
from typing import Any, TypeVar, cast

from common.clock import ManualClock
from common.config import JobsConfig
from services.gateway.jobs import lines
from services.gateway.jobs.leases import Span
from services.gateway.jobs.ledger import Ledger
from services.gateway.jobs.line_work import LineWork
from tests.unit.services.gateway.jobs.ledgers import batch_of, memory

T = TypeVar("T")


class MemoryLedger(Ledger):
    """On the caller's thread."""

    def __init__(self, db: Connection) -> None:
        super().__init__(Path("/nowhere"))
        self._db = db

    async def change(self, work: Callable[[Connection], T]) -> T:
        return work(self._db)


def work_of(db: Connection, **config: Any) -> LineWork:
    none = cast("Any", None)
    return LineWork(
        MemoryLedger(db),
        none,
        none,
        JobsConfig(**config),
        holder="g0",
        clock=ManualClock(),
        on_settled=none,
        on_placed=lambda: None,
    )


async def test_a_line_waits_until_it_is_placed_or_ended() -> None:
    db = memory()
    batch_of(db, 9)
    work = work_of(db, lines_waiting=3, lines_at_once=4)
    first, second, third = await work.take(work.room(0), Span(0, 1000))
    assert work.room(3) == 0
    work._placed(first)
    assert work.room(3) == 1
    work.ended(second)
    work.ended(first)
    assert work.room(1) == 2
    work.ended(third)
    assert work.room(0) == 3
    assert work.room(3) == 1, "as many as may run at once"


async def test_what_this_process_holds_is_renewed_before_anything_is_reclaimed() -> None:
    db = memory()
    batch = batch_of(db, 2)
    await work_of(db).take(1, Span(0, 1000))
    (other,) = lines.take(db, "g1", 1, 1, 0, 1000)
    work = work_of(db)
    work._sweep_at = 10_000
    work._batch_work = cast("Any", Deletes())
    held, reclaimed = await work.tend(Span(5_000, 6_000))
    assert held == {(batch, 2, 1)}
    assert reclaimed == 1
    assert lines.settle(db, [lines.Result(other, b"{}\n", failed=False)]) == 1


class Deletes:
    """Nothing is there to delete."""

    async def delete(self, names: list[str]) -> None:
        assert names == []
