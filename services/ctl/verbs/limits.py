"""`baton ctl limits`: the limits in force; sets them."""

from __future__ import annotations

from typing import Any

from services.ctl.table import fields, rows

_keys = rows(
    {
        "KEY": "key_id",
        "RUNNING": "live",
        "REQUESTS LEFT": "requests_left",
        "COST LEFT": "cost_left",
    },
    empty="",
)


def render(result: Any) -> str:
    parts = [fields(list(result["limits"].items()))]
    for key, limits in result["set_here"].items():
        settings = ", ".join(f"{name} {limit:g}" for name, limit in limits.items())
        parts.append(f"set here for key {key}: {settings}")
    return "\n\n".join([*parts, _keys(result["keys"])]).rstrip()
