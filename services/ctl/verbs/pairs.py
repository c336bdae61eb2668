"""`baton ctl pairs`: what each prefill worker hands to each decode worker."""

from __future__ import annotations

from common.net.admin_rows import PairRow
from services.ctl.table import duration, rows


def _state(pair: PairRow) -> str:
    if pair.unreachable_s is not None:
        return f"unreachable for {duration(pair.unreachable_s * 1000)}"
    return "ok" if pair.state == "closed" else pair.state


render = rows(
    {
        "PREFILL": "prefill",
        "DECODE": "decode",
        "STATE": _state,
        "HANDOFFS": "handoffs",
        "MOVED": "bytes",
        "BANDWIDTH": "bytes_per_s",
        "RETRIES": "retries",
        "DIGEST MISMATCHES": "digest_mismatches",
        "FAILED": "failures",
    },
    empty="no prefill and decode worker fit together",
    kind=PairRow,
)
