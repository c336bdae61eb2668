"""`baton ctl requests`, for people."""

from __future__ import annotations

from typing import Any

from services.ctl.table import span, table

HEAD = (
    "REQUEST",
    "TRY",
    "STATE",
    "AGE",
    "PROMPT",
    "MAX",
    "PREFILL",
    "DECODE",
    "GATEWAY",
    "WAITS FOR",
)


def render(result: Any) -> str:
    if not result:
        return "no request is queued or running"
    return table(
        HEAD,
        [
            (
                each["request_id"],
                each["attempt"],
                each["state"],
                span(each["age_ms"]),
                each["prompt_tokens"],
                each["max_tokens"],
                each["prefill"],
                each["decode"],
                each["gateway"],
                each["waits_for"],
            )
            for each in result
        ],
    )
