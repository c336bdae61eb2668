"""Streams leave a decode worker that is to be empty, because an operator drains it or it stops.

A stream moves when another worker has room for it and the model's KV allows it; else it stays and
ends where it is. Its worker ends it after a token and keeps its KV. The gateway submits the next
attempt, which is placed as any other, with the KV of the first worker in place of a prefill. Where
that KV is gone by then, the next worker is told so and computes it again.
"""

from __future__ import annotations

from common.blocks import streams_can_move
from common.messages import Introduce, Move, Role
from services.router.events import Action, Send
from services.router.placement.types import WorkerView
from services.router.records.attempt import Attempt
from services.router.records.states import AttemptState, WorkerState
from services.router.records.worker import Worker
from services.router.tables import Tables

MOVING_MAX = 8
"""Streams of one worker that were told to leave and have not ended there."""
CONNECT_SECONDS = 0.3
"""What a first KV connection takes; streams begin to leave after it."""
KEPT_SECONDS = 1.5
"""How long an attempt that waits is placed by its KV. Workers keep it a little longer."""


def move_streams(tables: Tables, now: float) -> list[Action]:
    """At each Tick."""
    actions: list[Action] = []
    for worker in tables.workers.values():
        if worker.role is not Role.DECODE:
            continue
        if not (worker.drained or worker.state is WorkerState.DRAINING):
            worker.emptying_since = None
        elif worker.emptying_since is None:
            worker.emptying_since = now
            actions += _introductions(tables, worker)
        elif now - worker.emptying_since >= CONNECT_SECONDS and not worker.away:
            actions += _move_some(tables, worker)
    return actions


def order_move(attempt: Attempt, reason: str) -> list[Action]:
    """The attempt goes on elsewhere, if it streams and its gateway can continue it."""
    if attempt.state is not AttemptState.DECODING or not attempt.resumable or attempt.moving:
        return []
    attempt.moving = True
    request_id, number = attempt.key
    return [Send(attempt.decode, Move(request_id=request_id, attempt=number, reason=reason))]


def source_of(tables: Tables, attempt: Attempt, now: float) -> Worker | None:
    """The decode worker that keeps the KV of this attempt, if it may still have it."""
    worker = tables.workers.get(attempt.moved_from) if attempt.moved_from else None
    if worker is None or worker.away or not streams_can_move(worker.capacity.kv_groups):
        return None
    return worker if now - attempt.received <= KEPT_SECONDS else None


def can_take(decode: WorkerView, source: Worker) -> bool:
    """Whether this worker can take KV from the other."""
    return decode.fingerprint == source.fingerprint and decode.identity != source.identity


def _introductions(tables: Tables, worker: Worker) -> list[Action]:
    introduction = Introduce(kv_address=worker.kv_address)
    return [Send(view.identity, introduction) for view in _others(tables, worker)]


def _move_some(tables: Tables, worker: Worker) -> list[Action]:
    if not worker.decoding or len(tables.waiting):
        return []
    if not streams_can_move(worker.capacity.kv_groups):
        return []
    moving = sum(tables.attempts[key].moving for key in worker.held)
    others = _others(tables, worker)
    why = "it is drained" if worker.drained else worker.reason
    reason = f"this stream leaves {worker.name}: {why}"
    actions: list[Action] = []
    for key in list(worker.decoding):
        attempt = tables.attempts[key]
        if moving >= min(MOVING_MAX, _rooms(attempt, others)):
            break
        orders = order_move(attempt, reason)
        moving += len(orders)
        actions += orders
    return actions


def _others(tables: Tables, worker: Worker) -> list[WorkerView]:
    return [view for view in tables.snapshots.open_decodes() if can_take(view, worker)]


def _rooms(attempt: Attempt, views: list[WorkerView]) -> int:
    """How many attempts of this size these workers could take now."""
    total = attempt.request.total_tokens
    return sum(
        min(
            view.requests_max - view.requests,
            (view.kv_tokens_max - view.kv_tokens) // max(1, view.kv_need(total)),
        )
        for view in views
        if total <= view.max_model_len
    )
