"""`baton ctl quarantine`: pairs that do not hand KV over now, and prompts that killed workers."""

from __future__ import annotations

from typing import Any

from services.ctl.table import duration, rows

_pairs = rows(
    {
        "PREFILL": "prefill",
        "DECODE": "decode",
        "STATE": "state",
        "FOR": "since_s",
        "RETRY IN": lambda pair: duration(pair["retry_in_s"] * 1000) if pair["retry_in_s"] else "",
        "TIMES OPENED": "openings",
        "KIND": "kind",
        "WHY": "message",
    },
    empty="no pair had trouble",
)
_prompts = rows(
    {
        "PROMPT": "digest",
        "WORKERS LOST": "workers",
        "LEFT": "left_s",
        "REFUSED": "refused",
        "REQUEST": "request_id",
    },
    empty="",
)


def render(result: Any) -> str:
    cleared = f"{result['cleared']} pairs may try again" if result["cleared"] else ""
    parts = (cleared, _pairs(result["pairs"]), _prompts(result.get("prompts", [])))
    return "\n\n".join(part for part in parts if part)
