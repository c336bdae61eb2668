"""`baton ctl pairs`: what each prefill worker hands to each decode worker."""

from __future__ import annotations

from typing import Any

from services.ctl.table import duration, rows, size
from services.ctl.verb import Verb, argument, value


def _state(pair: Any) -> str:
    seconds = pair.get("unreachable_s")
    if seconds is not None:
        return f"unreachable for {duration(seconds * 1000)}"
    return "ok" if pair["state"] == "closed" else str(pair["state"])


VERB = Verb(
    "pairs",
    "what each prefill worker hands to each decode worker, and over which bandwidth",
    rows(
        {
            "PREFILL": "prefill",
            "DECODE": "decode",
            "STATE": _state,
            "HANDOFFS": "handoffs",
            "MOVED": lambda pair: size(pair["bytes"]),
            "BANDWIDTH": lambda pair: f"{size(pair['bytes_per_s'])}/s",
            "RETRIES": "retries",
            "DIGEST MISMATCHES": "digest_mismatches",
            "FAILED": "failures",
        },
        empty="no prefill and decode worker fit together",
    ),
    (
        argument("--trouble", action="store_true", help="only those not used or not connected"),
        argument("--limit", type=value, metavar="N", help="rows at most (256)"),
    ),
    examples=("pairs --trouble  # which workers cannot reach each other",),
)
