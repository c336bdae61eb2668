"""`baton ctl keys`, for people."""

from __future__ import annotations

from typing import Any

from services.ctl.table import table

HEAD = ("KEY", "TENANT", "RUNNING", "QUEUED", "REQUESTS LEFT", "COST LEFT", "LIMITS")


def render(result: Any) -> str:
    if not result:
        return "no key is in use; `baton keys list` shows who may ask"
    rows = [
        (
            row["key_id"] or "(no key)",
            row["tenant"],
            row["running"],
            row["queued"],
            row["requests_left"],
            row["cost_left"],
            "set here" if row["limits_set_here"] else "",
        )
        for row in result
    ]
    return table(HEAD, rows)
