"""The ledger of KV that workers hold for other workers, with the request of each hold.

What a decode worker keeps of a stream that left it is `moving`: the next one takes it, or its lease
of `[kv] keep_ms` ends. Of a stream that was parked it is `parked`, and kept for a moment only.
Blocks that were offered to another worker's store, which pulls them, are a `copy`: they belong to
no request, and their lease is short.

A hold is an orphan when its request is over or unknown and its worker still reports it
`ORPHAN_SECONDS` later; reports are up to two beats old. An orphan that stays is a leak, which the
end of its lease repairs.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from common.errors import Code
from common.identity import attempt_of_pull, is_copy
from common.messages import KvHold
from services.router.records.states import WorkerState
from services.router.records.worker import Worker
from services.router.tables import SharedTables

ORPHAN_SECONDS = 2.0
MOVING = "moving"
PARKED = "parked"
COPY = "copy"


class TrackedHold(NamedTuple):
    """One hold, with the worker that has it."""

    worker: Worker
    hold: KvHold
    #: State of its request, or `moving`, `parked`, `copy`, `over` or `unknown`.
    state: str
    orphan: bool


def holds(shared: SharedTables) -> Iterator[TrackedHold]:
    """All holds, worker by worker, the oldest of each first. A worker reports at most
    `KV_HOLDS_MAX`."""
    for worker in shared.workers():
        if worker.state is not WorkerState.GONE:
            for hold in worker.kv_holds:
                yield _tracked(shared, worker, hold)


def orphans(shared: SharedTables) -> int:
    """The number of orphans: 0 unless KV leaks, or a request has just ended."""
    return sum(tracked.orphan for tracked in holds(shared))


def _tracked(shared: SharedTables, worker: Worker, hold: KvHold) -> TrackedHold:
    if is_copy(hold.request_id):
        late = hold.lease_left_ms <= 0 and hold.age_ms > ORPHAN_SECONDS * 1000
        return TrackedHold(worker, hold, COPY, late)
    key = attempt_of_pull((hold.request_id, hold.attempt))
    live = shared.attempt(key)
    if live is not None:
        moves = live.moved_from == worker.identity and live.decode != worker.identity
        state = MOVING if moves else live.state.value
        return TrackedHold(worker, hold, state, orphan=False)
    past = shared.history.find(key)
    if past is None or past.finished is None:
        unknown_since = max(shared.started, worker.kv_seen - hold.age_ms / 1000)
        return TrackedHold(worker, hold, "unknown", worker.kv_seen - unknown_since > ORPHAN_SECONDS)
    since = worker.kv_seen - past.finished
    if past.decode == worker.identity and past.outcome in (Code.MOVED, Code.DRAINING):
        late = hold.lease_left_ms <= 0 and since > ORPHAN_SECONDS
        return TrackedHold(worker, hold, PARKED if past.parked else MOVING, late)
    return TrackedHold(worker, hold, "over", since > ORPHAN_SECONDS)
