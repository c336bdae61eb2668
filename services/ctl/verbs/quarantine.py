"""`baton ctl quarantine`: pairs that do not hand KV over now, and prompts that killed workers."""

from __future__ import annotations

from typing import Any

from services.ctl.table import duration, duration_of, rows
from services.ctl.verb import Verb, argument

_pairs = rows(
    {
        "PREFILL": "prefill",
        "DECODE": "decode",
        "STATE": "state",
        "FOR": duration_of("since_s"),
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
        "WORKERS LOST": lambda prompt: ", ".join(prompt["workers"]),
        "LEFT": duration_of("left_s"),
        "REFUSED": "refused",
        "REQUEST": "request_id",
    },
    empty="",
)


def render(result: Any) -> str:
    cleared = f"{result['cleared']} pairs may try again" if result["cleared"] else ""
    parts = (cleared, _pairs(result["pairs"]), _prompts(result.get("prompts", [])))
    return "\n\n".join(part for part in parts if part)


VERB = Verb(
    "quarantine",
    "pairs that do not hand KV over now, prompts that killed workers; `clear` lifts it",
    render,
    (
        argument("action", nargs="?", metavar="ACTION", help="list or clear (list)"),
        argument("--prefill", metavar="WORKER", help="only pairs of this prefill worker"),
        argument("--decode", metavar="WORKER", help="only pairs of this decode worker"),
        argument("--prompt", metavar="DIGEST", help="only the prompt of this digest"),
    ),
    examples=("quarantine", "quarantine clear decode=d0"),
)
