"""`baton ctl kv`, for people."""

from __future__ import annotations

from typing import Any

from services.ctl.table import Cell, size, span, table

HOLDS = (
    "OWNER",
    "SIDE",
    "PEER",
    "REQUEST",
    "TRY",
    "STATE",
    "BLOCKS",
    "BYTES",
    "LEASE LEFT",
    "AGE",
)
COUNTS = (
    "WORKER",
    "HOLDS",
    "IN",
    "OUT",
    "BYTES IN",
    "BYTES OUT",
    "EARLY",
    "RETRIES",
    "DAMAGED",
    "RECOMPUTED",
    "EXPIRED",
)


def render(result: Any) -> str:
    holds, orphans = result["holds"], result["orphans"]
    head = (
        table(HOLDS, [_hold(each) for each in holds]) if holds else "no worker holds KV for another"
    )
    shown = len(holds)
    if result["holds_total"] > shown:
        head += f"\n{result['holds_total']} holds in all, {shown} shown"
    if orphans:
        head += f"\n{orphans} holds are ORPHANS: their request is over; their leases end them"
    counts = table(COUNTS, [_counts(each) for each in result["workers"]])
    return f"{head}\n\n{counts}" if result["workers"] else head


def _hold(each: Any) -> tuple[Cell, ...]:
    return (
        each["owner"],
        each["side"],
        each["peer"],
        each["request_id"],
        each["attempt"],
        f"{each['state']} ORPHAN" if each["orphan"] else each["state"],
        each["blocks"],
        size(each["bytes"]),
        span(each["lease_left_ms"]),
        span(each["age_ms"]),
    )


def _counts(each: Any) -> tuple[Cell, ...]:
    counts = each["counts"]
    if not counts:
        return (each["name"], each["holds"], *[None] * (len(COUNTS) - 2))
    sent = counts["bytes_out"]
    return (
        each["name"],
        each["holds"],
        counts["handoffs_in"],
        counts["handoffs_out"],
        size(counts["bytes_in"]),
        size(sent),
        f"{counts['early_bytes_out'] / sent:.0%}" if sent else None,
        counts["retries"] + counts["refetches"],
        counts["digest_mismatches"],
        counts["recomputes"],
        counts["leases_expired"],
    )
