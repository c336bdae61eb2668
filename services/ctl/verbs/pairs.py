"""`baton ctl pairs`, for people."""

from __future__ import annotations

from typing import Any

from services.ctl.table import size, span, table

HEAD = ("PREFILL", "DECODE", "STATE", "HANDOFFS", "MOVED", "LINK", "RETRIES", "DAMAGED", "FAILED")


def render(rows: Any) -> str:
    if not rows:
        return "no prefill and decode worker fit together"
    return table(
        HEAD,
        [
            (
                each["prefill"],
                each["decode"],
                _state(each),
                each["handoffs"],
                size(each["bytes"]),
                f"{size(each['bytes_per_s'])}/s",
                each["retries"],
                each["digest_mismatches"],
                each["failures"],
            )
            for each in rows
        ],
    )


def _state(each: Any) -> str:
    apart = each.get("unreachable_s")
    if apart is not None:
        return f"unreachable for {span(apart * 1000)}"
    return "sound" if each["state"] == "closed" else str(each["state"])
