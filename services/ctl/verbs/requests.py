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
QUEUE_HEAD = (
    "",
    "REQUEST",
    "CLASS",
    "TENANT",
    "WAITED",
    "MUST START IN",
    "PROMPT",
    "LIKELY OUT",
    "WAITS FOR",
)


def render(result: Any) -> str:
    if not result:
        return "no request is queued or running"
    if "class" in result[0]:
        return _queue(result)
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


def _queue(result: Any) -> str:
    return table(
        QUEUE_HEAD,
        [
            (
                at,
                each["request_id"],
                each["class"],
                each["tenant"],
                span(each["waited_ms"]),
                None if each["start_within_ms"] is None else span(each["start_within_ms"]),
                each["prompt_tokens"],
                each["output_tokens"],
                each["waits_for"],
            )
            for at, each in enumerate(result, 1)
        ],
    )
