"""`baton ctl requests`: what is queued and running now."""

from __future__ import annotations

from typing import Any

from services.ctl.table import rows


def _model(row: dict[str, Any]) -> str:
    """A router of an earlier version does not tell."""
    return str(row.get("model", ""))


_requests = rows(
    {
        "REQUEST": "request_id",
        "ATTEMPT": "attempt",
        "MODEL": _model,
        "STATE": "state",
        "AGE": "age_ms",
        "PROMPT": "prompt_tokens",
        "MAX": "max_tokens",
        "PREFILL": "prefill",
        "DECODE": "decode",
        "GATEWAY": "gateway",
        "WAITS FOR": "waits_for",
        "MOVE": lambda row: row.get("move", ""),
        "COPIES": lambda row: row.get("copies", ""),
    },
    empty="no request is queued or running",
)
_queue = rows(
    {
        "": "place",
        "REQUEST": "request_id",
        "MODEL": _model,
        "CLASS": "class",
        "TENANT": "tenant",
        "WAITED": "waited_ms",
        "MUST START IN": "start_within_ms",
        "PROMPT": "prompt_tokens",
        "OUTPUT PREDICTED": "output_tokens",
        "WAITS FOR": "waits_for",
    },
    empty="",
)


def render(result: Any) -> str:
    if result and "class" in result[0]:
        return _queue([{"place": place, **row} for place, row in enumerate(result, 1)])
    return _requests(result)
