"""`baton ctl kv`: KV that workers hold for others, and what their KV services counted."""

from __future__ import annotations

from typing import Any

import msgspec

from common.net.admin_rows import HoldRow, KvLedger, KvWorkerRow
from services.ctl.table import Cell, rows, size, table

_holds = rows(
    {
        "OWNER": "owner",
        "SIDE": "side",
        "PEER": "peer",
        "REQUEST": "request_id",
        "ATTEMPT": "attempt",
        "STATE": lambda hold: f"{hold.state} ORPHAN" if hold.orphan else hold.state,
        "BLOCKS": "blocks",
        "BYTES": "bytes",
        "LEASE LEFT": "lease_left_ms",
        "AGE": "age_ms",
    },
    empty="no worker holds KV for another",
    kind=HoldRow,
)
COUNTS = (
    "WORKER", "HOLDS", "IN", "OUT", "BYTES IN", "BYTES OUT", "EARLY", "RETRIES",
    "DIGEST MISMATCHES", "RECOMPUTED", "LEASES EXPIRED", "STORED", "FROM STORE", "STORE DAMAGED",
)  # fmt: skip


def render(result: Any) -> str:
    ledger, text = msgspec.convert(result, KvLedger), _holds(result["holds"])
    if ledger.holds_total > len(ledger.holds):
        text += f"\n{ledger.holds_total} holds in all, {len(ledger.holds)} shown"
    if ledger.orphans:
        text += f"\n{ledger.orphans} holds are ORPHANS: their requests are over; leases end them"
    workers = [_counts(worker) for worker in ledger.workers]
    return f"{text}\n\n{table(COUNTS, workers)}" if workers else text


def _counts(worker: KvWorkerRow) -> tuple[Cell, ...]:
    counts = worker.counts
    if not counts:
        return (worker.name, worker.holds, *[None] * (len(COUNTS) - 2))
    sent = counts["bytes_out"]
    return (
        *(worker.name, worker.holds, counts["handoffs_in"], counts["handoffs_out"]),
        *(size(counts["bytes_in"]), size(sent)),
        f"{counts['early_bytes_out'] / sent:.0%}" if sent else None,
        counts["retries"] + counts["refetches"],
        *(counts["digest_mismatches"], counts["recomputes"], counts["leases_expired"]),
        *(counts["store_held"], counts["store_read"], counts["store_damaged"]),
    )
