"""`pairs`: what each prefill and decode worker handed over, and whether they do now."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from common.messages import Role
from services.router.admin import pair_rows
from services.router.admin.verb import Arg, Value, Verb, View
from services.router.timeline.traffic import Pair

ROWS_MAX = 4_096


def run(view: View, args: dict[str, Value]) -> list[dict[str, Any]]:
    tables, limit = view.tables, int(args["limit"])
    trouble = {
        (row["prefill"], row["decode"]): row["state"] for row in pair_rows.rows(tables, view.now)
    }
    ready = [worker for worker in tables.workers.values() if worker.connected]
    there = [
        (p.name, d.name)
        for p in ready
        for d in ready
        if p.role is Role.PREFILL and d.role is Role.DECODE and p.fingerprint == d.fingerprint
    ]
    names = sorted({*there, *tables.recorder.traffic.pairs})[:limit]
    return [
        {
            "prefill": prefill,
            "decode": decode,
            "state": trouble.get((prefill, decode), "closed"),
            **asdict(tables.recorder.traffic.pairs.get((prefill, decode), Pair())),
            "bytes_per_s": round(tables.estimates.bandwidth.bytes_per_s(prefill, decode)),
        }
        for prefill, decode in names
    ]


VERB = Verb(
    "pairs",
    "what each pair of workers handed over: handoffs, bytes, time, retries, damage",
    (Arg("limit", "rows at most", default=256, least=1, most=ROWS_MAX),),
    run,
)
