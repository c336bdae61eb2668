"""`baton ctl quarantine [clear]`, for people."""

from __future__ import annotations

from typing import Any

from services.ctl.table import span, table

HEAD = ("PREFILL", "DECODE", "STATE", "FOR", "TRIED AGAIN IN", "TIMES", "KIND", "WHY")


def render(result: Any) -> str:
    cleared = f"{result['cleared']} pairs may try again\n\n" if result["cleared"] else ""
    prompts = _prompts(result.get("prompts", []))
    if not result["pairs"]:
        return f"{cleared}no pair had trouble{prompts}"
    rows = [
        (
            pair["prefill"],
            pair["decode"],
            pair["state"],
            span(pair["since_s"] * 1000),
            span(pair["retry_in_s"] * 1000) if pair["retry_in_s"] else "",
            pair["openings"],
            pair["kind"],
            pair["message"],
        )
        for pair in result["pairs"]
    ]
    return cleared + table(HEAD, rows) + prompts


def _prompts(rows: list[dict[str, Any]]) -> str:
    """Prompts with which workers died."""
    if not rows:
        return ""
    shown = [
        (
            row["digest"],
            ", ".join(row["workers"]),
            span(row["left_s"] * 1000),
            row["refused"],
            row["request_id"],
        )
        for row in rows
    ]
    return "\n\n" + table(("PROMPT", "DIED WITH IT", "LEFT", "REFUSED", "REQUEST"), shown)
