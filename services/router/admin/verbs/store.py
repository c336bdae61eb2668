"""`store`: what each tier of each worker's store holds and has counted."""

from __future__ import annotations

from collections.abc import Iterator

from common.net.admin_rows import StoreRow
from common.net.admin_verbs import Value
from services.router.admin.verb import View
from services.router.records.states import WorkerState
from services.router.records.worker import Worker


def run(view: View, args: dict[str, Value]) -> list[StoreRow]:
    workers = [w for w in view.shared.workers() if w.state is not WorkerState.GONE]
    chosen = [w for w in workers if args["worker"] in ("", w.name)]
    return [row for worker in sorted(chosen, key=lambda w: w.name) for row in _rows(worker)]


def _rows(worker: Worker) -> Iterator[StoreRow]:
    counts, block_bytes = worker.kv_counts, worker.capacity.kv_block_bytes
    if counts is None:
        return
    if counts.store_slots:
        yield StoreRow(
            worker=worker.name,
            role=worker.role.value,
            tier="ram",
            state="on",
            blocks=counts.store_held,
            blocks_max=counts.store_slots,
            bytes=counts.store_held * block_bytes,
            bytes_max=counts.store_slots * block_bytes,
            written=counts.store_written,
            hits=counts.store_read,
            evicted=counts.store_evicted,
            expired=counts.store_expired,
            damaged=counts.store_damaged,
            skipped=counts.store_skipped,
            ttl_s=counts.store_ttl_s,
        )
    if counts.store_disk_slots:
        yield StoreRow(
            worker=worker.name,
            role=worker.role.value,
            tier="disk",
            state="failed" if counts.store_disk_off else "on",
            blocks=counts.store_disk_held,
            blocks_max=counts.store_disk_slots,
            bytes=counts.store_disk_held * block_bytes,
            bytes_max=counts.store_disk_slots * block_bytes,
            written=counts.store_disk_written,
            hits=counts.store_disk_read,
            evicted=counts.store_disk_evicted,
            expired=counts.store_disk_expired,
            damaged=counts.store_disk_damaged,
            skipped=counts.store_disk_skipped,
            ttl_s=counts.store_ttl_s,
        )
