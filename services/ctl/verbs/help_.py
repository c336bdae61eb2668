"""`baton ctl help`: the verbs of the running router, as it describes them itself."""

from __future__ import annotations

from typing import Any

from services.ctl.table import table


def render(result: Any) -> str:
    lines = []
    for verb in result:
        lines.append((verb["usage"], verb["help"]))
        for arg in verb["args"]:
            choices = f" ({', '.join(arg['choices'])})" if arg["choices"] else ""
            lines.append((f"    {arg['name']}", f"{arg['help']}{choices}"))
    return table(("VERB", "WHAT IT DOES"), lines)
