"""`baton ctl policy [NAME]`, for people."""

from __future__ import annotations

from typing import Any

from services.ctl.table import pairs, table


def render(result: Any) -> str:
    now = pairs(
        [
            ("policy", result["policy"]),
            ("remote prefill", result["remote_prefill"]),
            ("mode", result["mode"]),
        ]
    )
    known = [
        ("*" if name == result["policy"] else " ", name, what)
        for name, what in result["policies"].items()
    ]
    return f"{now}\n\n{table(('', 'POLICY', 'WHO IS CHOSEN'), known)}"
