"""`baton ctl kv`: KV that workers hold for others, and what their KV services counted."""

from __future__ import annotations

from typing import Any

from services.ctl.table import Cell, duration_of, rows, size, table
from services.ctl.verb import Verb, argument, value

_holds = rows(
    {
        "OWNER": "owner",
        "SIDE": "side",
        "PEER": "peer",
        "REQUEST": "request_id",
        "ATTEMPT": "attempt",
        "STATE": lambda hold: f"{hold['state']} ORPHAN" if hold["orphan"] else hold["state"],
        "BLOCKS": "blocks",
        "BYTES": lambda hold: size(hold["bytes"]),
        "LEASE LEFT": duration_of("lease_left_ms"),
        "AGE": duration_of("age_ms"),
    },
    empty="no worker holds KV for another",
)
COUNTS = (
    "WORKER", "HOLDS", "IN", "OUT", "BYTES IN", "BYTES OUT", "EARLY", "RETRIES",
    "DIGEST MISMATCHES", "RECOMPUTED", "LEASES EXPIRED",
)  # fmt: skip


def render(result: Any) -> str:
    text, shown, orphans = _holds(result["holds"]), len(result["holds"]), result["orphans"]
    if result["holds_total"] > shown:
        text += f"\n{result['holds_total']} holds in all, {shown} shown"
    if orphans:
        text += f"\n{orphans} holds are ORPHANS: their request is over; their leases end them"
    workers = [_counts(worker) for worker in result["workers"]]
    return f"{text}\n\n{table(COUNTS, workers)}" if workers else text


def _counts(worker: Any) -> tuple[Cell, ...]:
    counts = worker["counts"]
    if not counts:
        return (worker["name"], worker["holds"], *[None] * (len(COUNTS) - 2))
    sent = counts["bytes_out"]
    return (
        *(worker["name"], worker["holds"], counts["handoffs_in"], counts["handoffs_out"]),
        *(size(counts["bytes_in"]), size(sent)),
        f"{counts['early_bytes_out'] / sent:.0%}" if sent else None,
        counts["retries"] + counts["refetches"],
        *(counts["digest_mismatches"], counts["recomputes"], counts["leases_expired"]),
    )


VERB = Verb(
    "kv",
    "KV held for other workers: owner, request, bytes, lease left; and each worker's counts",
    render,
    (
        argument("worker", nargs="?", metavar="WORKER", help="only what this worker holds"),
        argument("--limit", type=value, metavar="N", help="holds at most (100)"),
    ),
    examples=("kv  # the oldest hold first", "kv p0"),
)
