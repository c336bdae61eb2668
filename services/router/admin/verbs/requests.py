"""`requests`: the attempts that are queued or running now."""

from __future__ import annotations

from itertools import chain, islice

from common.identity import name_of
from common.net.admin_rows import QueuedRow, RequestRow
from common.net.admin_verbs import Value
from services.router.admin.verb import View
from services.router.records.attempt import Attempt
from services.router.records.states import AttemptState


def run(view: View, args: dict[str, Value]) -> list[QueuedRow] | list[RequestRow]:
    state, limit = args["state"], args["limit"]
    assert isinstance(limit, int)
    if args["queue"]:
        models = view.shared.models.values()
        queued = chain.from_iterable(tables.waiting.in_order() for tables in models)
        return [_queued(view, attempt) for attempt in islice(queued, limit)]
    rows: list[RequestRow] = []
    for attempt in view.shared.attempts():
        if len(rows) == limit:
            break
        if not state or attempt.state.value == state:
            rows.append(_row(view, attempt))
    return rows


def _row(view: View, attempt: Attempt) -> RequestRow:
    placement = attempt.placement
    queued = attempt.state is AttemptState.QUEUED
    return RequestRow(
        request_id=attempt.request_id,
        attempt=attempt.number,
        model=attempt.model,
        state=attempt.state.value,
        tenant=attempt.tenant,
        key_id=attempt.key_id,
        priority=attempt.priority.name.lower(),
        age_ms=round((view.now - attempt.received) * 1000, 1),
        prompt_tokens=attempt.request.prompt_tokens,
        max_tokens=attempt.request.max_tokens,
        prefill=placement.prefill.name if placement and placement.prefill else "",
        decode=placement.decode.name if placement else "",
        gateway=name_of(attempt.gateway),
        waits_for=attempt.waits_for.value if queued and attempt.waits_for else "",
        move=_move(attempt),
        copies=_copies(attempt),
    )


def _copies(attempt: Attempt) -> str:
    if not attempt.holder:
        return ""
    holder, progress = name_of(attempt.holder), attempt.checkpoint
    return f"{holder}, lacks {progress.blocks - progress.held}" if progress else holder


def _move(attempt: Attempt) -> str:
    order = attempt.leaves_by
    if order is not None:
        return f"leaves for {name_of(order.target) or 'another'} ({order.reason.value})"
    source = name_of(attempt.moved_from)
    return f"from {source} ({attempt.move_reason.value})" if source else ""


def _queued(view: View, attempt: Attempt) -> QueuedRow:
    left = attempt.start_by - view.now if attempt.start_by else None
    return QueuedRow(
        request_id=attempt.request_id,
        attempt=attempt.number,
        model=attempt.model,
        priority=attempt.priority.name.lower(),
        tenant=attempt.tenant,
        key_id=attempt.key_id,
        waited_ms=round((view.now - attempt.received) * 1000, 1),
        start_within_ms=None if left is None else round(left * 1000, 1),
        prompt_tokens=attempt.request.prompt_tokens,
        output_tokens=attempt.output_tokens,
        cost=round(attempt.cost, 1),
        passed_by=attempt.passed_by,
        waits_for=attempt.waits_for.value if attempt.waits_for else "",
    )
