"""`baton ctl requests`: what is queued and running now."""

from __future__ import annotations

from typing import Any

from services.ctl.table import duration_of, rows
from services.ctl.verb import Verb, argument, value

_requests = rows(
    {
        "REQUEST": "request_id",
        "ATTEMPT": "attempt",
        "STATE": "state",
        "AGE": duration_of("age_ms"),
        "PROMPT": "prompt_tokens",
        "MAX": "max_tokens",
        "PREFILL": "prefill",
        "DECODE": "decode",
        "GATEWAY": "gateway",
        "WAITS FOR": "waits_for",
    },
    empty="no request is queued or running",
)
_queue = rows(
    {
        "": "place",
        "REQUEST": "request_id",
        "CLASS": "class",
        "TENANT": "tenant",
        "WAITED": duration_of("waited_ms"),
        "MUST START IN": duration_of("start_within_ms"),
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


VERB = Verb(
    "requests",
    "what is queued and running now, oldest first",
    render,
    (
        argument("state", nargs="?", metavar="STATE", help="queued, placed, decoding or aborting"),
        argument("--queue", action="store_true", help="what waits, as it will be served"),
        argument("--limit", type=value, metavar="N", help="rows at most (100)"),
    ),
    examples=("requests queued limit=20", "requests --queue  # who is served next"),
)
