"""`baton ctl move`: where a running stream goes."""

from __future__ import annotations

from typing import Any


def render(result: Any) -> str:
    to = result["to"] or " or ".join(result["could_go_to"])
    return (
        f"request {result['request_id']} leaves {result['from']} for {to}; "
        f"`explain {result['request_id']}` says what became of it"
    )
