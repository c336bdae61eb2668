"""`baton ctl help`, for people."""

from __future__ import annotations

from typing import Any

from services.ctl.table import table


def render(result: Any) -> str:
    rows = []
    for each in result:
        rows.append((each["usage"], each["help"]))
        for arg in each["args"]:
            choices = f" ({', '.join(arg['choices'])})" if arg["choices"] else ""
            rows.append((f"    {arg['name']}", f"{arg['help']}{choices}"))
    return table(("VERB", "WHAT IT DOES"), rows)
