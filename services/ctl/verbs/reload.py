"""`baton ctl reload`: makes the router read its fleet file again."""

from __future__ import annotations

from typing import Any


def render(result: Any) -> str:
    return f"in force now: {result['sentence']}"
