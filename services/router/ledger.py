"""The ledger of KV held across nodes: who holds what for whom, and what nobody can want any more.

A hold is an orphan when its request is over, or was never heard of, and its worker still reports
it `ORPHAN_SECONDS` later: reports are up to two beats old. One that stays is a leak; its lease
ends it.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from common.messages import KvHold
from services.router.records import Worker
from services.router.state import WorkerState
from services.router.tables import Tables

ORPHAN_SECONDS = 2.0


class Held(NamedTuple):
    """One hold, with its owner. `state`: of the request, or `over`, or `unknown`."""

    worker: Worker
    hold: KvHold
    state: str
    orphan: bool


def holds(tables: Tables) -> Iterator[Held]:
    """By worker, the oldest first in each; a worker reports `KV_HOLDS_MAX` at most."""
    for worker in tables.workers.values():
        if worker.state is not WorkerState.GONE:
            for hold in worker.kv_holds:
                yield _held(tables, worker, hold)


def orphans(tables: Tables) -> int:
    """The leak invariant: 0 whenever nothing has just ended."""
    return sum(held.orphan for held in holds(tables))


def _held(tables: Tables, worker: Worker, hold: KvHold) -> Held:
    live = tables.tries.get((hold.request_id, hold.attempt))
    if live is not None:
        return Held(worker, hold, live.state.value, orphan=False)
    past = tables.history.find((hold.request_id, hold.attempt))
    if past is None or past.finished is None:
        unknown_since = max(tables.started, worker.kv_seen - hold.age_ms / 1000)
        return Held(worker, hold, "unknown", worker.kv_seen - unknown_since > ORPHAN_SECONDS)
    return Held(worker, hold, "over", worker.kv_seen - past.finished > ORPHAN_SECONDS)
