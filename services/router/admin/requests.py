"""`requests`: what is queued and running now."""

from __future__ import annotations

from itertools import islice
from typing import Any

from services.router.admin.verb import Arg, Value, Verb, View
from services.router.records import Try
from services.router.state import TryState

LIVE = ("queued", "placed", "decoding", "aborting")
ROWS_MAX = 1_000


def run(view: View, args: dict[str, Value]) -> list[dict[str, Any]]:
    state, limit = args["state"], args["limit"]
    assert isinstance(limit, int)
    if args["queue"]:
        return [_queued(view, each) for each in islice(view.tables.waiting.in_order(), limit)]
    rows: list[dict[str, Any]] = []
    for each in view.tables.tries.values():
        if len(rows) == limit:
            break
        if not state or each.state.value == state:
            rows.append(_row(view, each))
    return rows


def _row(view: View, each: Try) -> dict[str, Any]:
    placement = each.placement
    queued = each.state is TryState.QUEUED
    return {
        "request_id": each.request_id,
        "attempt": each.attempt,
        "state": each.state.value,
        "tenant": each.tenant,
        "key_id": each.key_id,
        "priority": each.priority.name.lower(),
        "age_ms": round((view.now - each.received) * 1000, 1),
        "prompt_tokens": each.ask.prompt_tokens,
        "max_tokens": each.ask.max_tokens,
        "prefill": placement.prefill.name if placement and placement.prefill else "",
        "decode": placement.decode.name if placement else "",
        "gateway": each.gateway.rpartition("|")[0],
        "waits_for": each.waits_for.value if queued and each.waits_for else "",
    }


def _queued(view: View, each: Try) -> dict[str, Any]:
    left = each.start_by - view.now if each.start_by else None
    return {
        "request_id": each.request_id,
        "attempt": each.attempt,
        "class": each.priority.name.lower(),
        "tenant": each.tenant,
        "key_id": each.key_id,
        "waited_ms": round((view.now - each.received) * 1000, 1),
        "start_within_ms": None if left is None else round(left * 1000, 1),
        "prompt_tokens": each.ask.prompt_tokens,
        "output_tokens": each.output_tokens,
        "cost": round(each.cost, 1),
        "passed_by": each.passed_by,
        "waits_for": each.waits_for.value if each.waits_for else "",
    }


VERB = Verb(
    "requests",
    "what is queued and running now, oldest first",
    (
        Arg("state", "only this state", default="", choices=("", *LIVE)),
        Arg("queue", "what waits, in the order in which it would be served", default=False),
        Arg("limit", "rows at most", default=100, least=1, most=ROWS_MAX),
    ),
    run,
)
