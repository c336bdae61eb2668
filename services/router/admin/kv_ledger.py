"""The ledger of KV that workers hold for other workers, with the request of each hold.

A hold is an orphan when its request is over or unknown and its worker still reports it
`ORPHAN_SECONDS` later; reports are up to two beats old. An orphan that stays is a leak, which the
end of its lease repairs.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from common.identity import attempt_of_pull
from common.messages import KvHold
from services.router.records.states import WorkerState
from services.router.records.worker import Worker
from services.router.tables import Tables

ORPHAN_SECONDS = 2.0


class TrackedHold(NamedTuple):
    """One hold, with the worker that has it."""

    worker: Worker
    hold: KvHold
    #: State of its request, or `over`, or `unknown`.
    state: str
    orphan: bool


def holds(tables: Tables) -> Iterator[TrackedHold]:
    """All holds, worker by worker, the oldest of each first. A worker reports at most
    `KV_HOLDS_MAX`."""
    for worker in tables.workers.values():
        if worker.state is not WorkerState.GONE:
            for hold in worker.kv_holds:
                yield _tracked(tables, worker, hold)


def orphans(tables: Tables) -> int:
    """The number of orphans: 0 unless KV leaks, or a request has just ended."""
    return sum(tracked.orphan for tracked in holds(tables))


def _tracked(tables: Tables, worker: Worker, hold: KvHold) -> TrackedHold:
    key = attempt_of_pull((hold.request_id, hold.attempt))
    live = tables.attempts.get(key)
    if live is not None:
        return TrackedHold(worker, hold, live.state.value, orphan=False)
    past = tables.history.find(key)
    if past is None or past.finished is None:
        unknown_since = max(tables.started, worker.kv_seen - hold.age_ms / 1000)
        return TrackedHold(worker, hold, "unknown", worker.kv_seen - unknown_since > ORPHAN_SECONDS)
    return TrackedHold(worker, hold, "over", worker.kv_seen - past.finished > ORPHAN_SECONDS)
