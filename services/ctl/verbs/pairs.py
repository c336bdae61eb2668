"""`baton ctl pairs`, for people."""

from __future__ import annotations

from typing import Any

from services.ctl.table import size, table

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
                "sound" if each["state"] == "closed" else each["state"],
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
