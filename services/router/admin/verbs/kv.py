"""`kv`: every hold of KV for another worker, and the counters of the KV planes."""

from __future__ import annotations

import msgspec

from common.net.admin_rows import HoldRow, KvLedger, KvWorkerRow
from common.net.admin_verbs import Value
from services.router.admin import kv_ledger
from services.router.admin.kv_ledger import TrackedHold
from services.router.admin.verb import View
from services.router.records.states import WorkerState
from services.router.records.worker import Worker


def run(view: View, args: dict[str, Value]) -> KvLedger:
    name, limit = args["worker"], args["limit"]
    assert isinstance(limit, int)
    workers = [w for w in view.shared.workers() if w.state is not WorkerState.GONE]
    tracked = list(kv_ledger.holds(view.shared))
    chosen = [row for row in tracked if not name or row.worker.name == name]
    chosen.sort(key=lambda row: -row.hold.age_ms)
    return KvLedger(
        holds=tuple(_hold(row, view.now) for row in chosen[:limit]),
        holds_total=sum(w.kv_holds_total for w in workers),
        bytes_total=sum(row.hold.bytes for row in tracked),
        orphans=sum(row.orphan for row in tracked),
        workers=tuple(_worker(w) for w in workers if not name or w.name == name),
    )


def _hold(held: TrackedHold, now: float) -> HoldRow:
    """Age and lease are those of now, not those of the report."""
    hold, since = held.hold, (now - held.worker.kv_seen) * 1000
    return HoldRow(
        owner=held.worker.name,
        side=hold.side,
        peer=hold.peer,
        request_id=hold.request_id,
        attempt=hold.attempt,
        state=held.state,
        orphan=held.orphan,
        blocks=hold.blocks,
        bytes=hold.bytes,
        lease_left_ms=round(max(0.0, hold.lease_left_ms - since), 1),
        age_ms=round(hold.age_ms + since, 1),
    )


def _worker(worker: Worker) -> KvWorkerRow:
    counts = worker.kv_counts
    return KvWorkerRow(
        name=worker.name,
        role=worker.role.value,
        holds=worker.kv_holds_total,
        counts={} if counts is None else msgspec.structs.asdict(counts),
    )
