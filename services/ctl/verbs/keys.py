"""`baton ctl keys`: the API keys that use the fleet now."""

from __future__ import annotations

from services.ctl.table import rows

render = rows(
    {
        "KEY": lambda row: row["key_id"] or "(no key)",
        "TENANT": "tenant",
        "RUNNING": "running",
        "QUEUED": "queued",
        "REQUESTS LEFT": "requests_left",
        "COST LEFT": "cost_left",
        "LIMITS": lambda row: "set here" if row["limits_set_here"] else "",
    },
    empty="no key is in use; `baton keys list` shows who may ask",
)
