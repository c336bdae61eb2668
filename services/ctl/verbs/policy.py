"""`baton ctl policy`: how workers are chosen."""

from __future__ import annotations

from typing import Any

from services.ctl.table import fields, table


def render(result: Any) -> str:
    in_force = [
        (key.replace("_", " "), result[key]) for key in ("policy", "remote_prefill", "mode")
    ]
    policies = [
        ("*" if name == result["policy"] else " ", name, help_)
        for name, help_ in result["policies"].items()
    ]
    return f"{fields(in_force)}\n\n{table(('', 'POLICY', 'WHO IS CHOSEN'), policies)}"
