"""`baton ctl limits [NAME=VALUE ...]`, for people."""

from __future__ import annotations

from typing import Any

from services.ctl.table import pairs, table

HEAD = ("KEY", "RUNNING", "REQUESTS LEFT", "COST LEFT")


def render(result: Any) -> str:
    parts = [pairs(list(result["limits"].items()))]
    for key, limits in result["set_here"].items():
        said = ", ".join(f"{name} {value:g}" for name, value in limits.items())
        parts.append(f"set here for key {key}: {said}")
    rows = [
        (row["key_id"], row["live"], row["requests_left"], row["cost_left"])
        for row in result["keys"]
    ]
    if rows:
        parts.append(table(HEAD, rows))
    return "\n\n".join(parts)
