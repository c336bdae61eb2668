"""What an operator orders through the admin socket: drain, resume, evict, move, limits, policy.

The admin verbs have checked the values. An order to drain is kept by the worker and comes back in
its Beats, so that it outlives a restart of the router and every router knows it. Until a Beat
agrees, the order is sent again.
"""

from __future__ import annotations

from common.errors import Code
from common.identity import AttemptKey, name_of
from common.messages import Beat, Drain, Role
from services.router.events import (
    Action,
    LimitsChosen,
    Note,
    PolicyChosen,
    PromptsCleared,
    RequestEvicted,
    RequestMoved,
    Send,
    WorkerDrained,
    WorkerEvicted,
)
from services.router.records.move import MoveReason
from services.router.records.states import AttemptState
from services.router.records.worker import Worker
from services.router.rules import attempt_lifecycle, moves, submit, worker_trust
from services.router.tables import SharedTables, Tables

BY_OPERATOR = "an operator evicted it"
EVICT_SECONDS = 2.0
"""For so long the streams of an evicted worker may move; then they are dropped, too."""


def drain_worker(tables: Tables, event: WorkerDrained) -> list[Action]:
    """Unknown workers are the verb's to refuse. Idempotent."""
    worker = tables.workers.get(event.worker)
    if worker is None:
        return []
    worker.drain_ordered = event.on
    return [Send(worker.identity, Drain(on=event.on)), *_set_drained(worker, drained=event.on)]


def confirm_drain(worker: Worker, message: Beat) -> list[Action]:
    """The worker's own word counts, except against an order that it has not received yet."""
    if worker.drain_ordered is not None and worker.drain_ordered is not message.drained:
        return [Send(worker.identity, Drain(on=worker.drain_ordered))]
    worker.drain_ordered = None
    return _set_drained(worker, drained=message.drained)


def _set_drained(worker: Worker, *, drained: bool) -> list[Action]:
    if worker.drained is drained:
        return []
    worker.set_drained(drained)
    left = len(worker.held)
    what = f"gets nothing new, and {left} requests move or finish" if drained else "gets work"
    note = f"{worker.role} {worker.name} {what}: an operator's order"
    return [Note("info", "worker.drained" if drained else "worker.resumed", note)]


def move_request(tables: Tables, event: RequestMoved, now: float) -> list[Action]:
    """Nothing if it ended or was ordered to move meanwhile."""
    attempt = tables.attempts.get((event.request_id, event.attempt))
    if attempt is None:
        return []
    target = f" to {name_of(event.target)}" if event.target else ""
    sentence = f"an operator moves this stream{target}"
    return moves.order_move(
        tables, attempt, MoveReason.OPERATOR, sentence, now, target=event.target
    )


def evict_worker(tables: Tables, event: WorkerEvicted, now: float) -> list[Action]:
    """Drops what the worker holds. It is drained, too, or it would be given the next at once. Its
    streams that can go on elsewhere with their KV have `EVICT_SECONDS` for that, once."""
    worker = tables.workers.get(event.worker)
    if worker is None:
        return []
    again = worker.drop_at is not None
    actions = drain_worker(tables, WorkerDrained(worker.identity, on=True))
    stay = [key for key, why in why_dropped(tables, worker).items() if why or again]
    dropped = len(stay)
    actions += _drop(tables, worker, stay, now)
    what = f"{dropped} requests were dropped"
    if worker.held:
        worker.drop_at = now + EVICT_SECONDS
        if worker.emptying_since is None:
            actions += moves.start_emptying(tables, worker, now)
        what += f", {len(worker.held)} move with their KV"
    sentence = f"{worker.role} worker {worker.name} was evicted by an operator: {what}"
    return [*actions, Note("warning", "worker.evicted", sentence)]


def drop_evicted(tables: Tables, now: float) -> list[Action]:
    """At each Tick: drops what did not move in time."""
    actions: list[Action] = []
    for worker in tables.workers.values():
        if worker.drop_at is not None and now >= worker.drop_at:
            worker.drop_at = None
            actions += _drop(tables, worker, list(worker.held), now)
    return actions


def why_dropped(tables: Tables, worker: Worker) -> dict[AttemptKey, str]:
    """Of all that the worker holds, why an eviction drops it; empty = it can move."""
    if worker.role is not Role.DECODE:
        return dict.fromkeys(worker.held, "prefill workers have no streams to move")
    if worker.health_verdict is not None:
        reason = f"its KV is not trusted, because {worker.health_verdict.reason}"
        return dict.fromkeys(worker.held, reason)
    attempts = [tables.attempts[key] for key in worker.held]
    return {
        attempt.key: moves.why_it_stays(tables, attempt)
        or ("" if moves.takers(tables, attempt, worker) else "no other decode worker has room")
        for attempt in attempts
    }


def _drop(tables: Tables, worker: Worker, keys: list[AttemptKey], now: float) -> list[Action]:
    if not keys:
        return []
    sentence = f"{worker.role} worker {worker.name} was evicted by an operator"
    actions = worker_trust.give_up(tables, worker, keys, sentence, now)
    return actions + worker_trust.abort_messages(worker, keys, BY_OPERATOR)


def evict_request(tables: Tables, event: RequestEvicted, now: float) -> list[Action]:
    """Its client gets an error; with this code its gateway takes it nowhere else. Idempotent."""
    attempt = tables.attempts.get((event.request_id, event.attempt))
    if attempt is None:
        return []
    if attempt.state is AttemptState.QUEUED:
        return submit.refuse(tables, attempt, Code.CANCELLED, BY_OPERATOR, now)
    aborting = attempt.state is AttemptState.ABORTING
    actions = attempt_lifecycle.abort(tables, attempt, BY_OPERATOR, now)
    if not aborting:
        failed = attempt_lifecycle.failed_message(
            attempt.gateway, attempt.key, BY_OPERATOR, Code.CANCELLED
        )
        actions.append(failed)
    return actions


def choose_limits(shared: SharedTables, event: LimitsChosen, now: float) -> list[Action]:
    """Sets limits of all models at once. What a smaller queue has no room for is refused, the
    newest first."""
    keys = shared.keys
    if event.key_id and event.key_limits is None:
        keys.overrides.pop(event.key_id, None)
    elif event.key_id and event.key_limits is not None:
        keys.overrides[event.key_id] = event.key_limits
    actions: list[Action] = []
    for tables in shared.models.values():
        tables.set_limits(event.limits)
        for attempt in reversed(list(tables.waiting)):
            if tables.waiting.within_bounds():
                break
            sentence = "an operator made the queue smaller"
            actions += submit.refuse(tables, attempt, Code.QUEUE_FULL, sentence, now)
    what = f" and of key {event.key_id}" if event.key_id else ""
    sentence = f"an operator chose: limits {event.limits}{what}"
    return [*actions, Note("info", "limits.chosen", sentence)]


def choose_policy(shared: SharedTables, event: PolicyChosen) -> list[Action]:
    """Sets the policy, or the rule for remote prefill, for what is placed from now on."""
    for tables in shared.models.values():
        tables.set_policy(event.policy, event.remote_prefill)
    memories = [tables.placement_memory for tables in shared.models.values()]
    sentence = (
        f"an operator chose: policy {memories[0].policy.NAME}, "
        f"remote prefill {memories[0].options.remote_prefill}"
    )
    return [Note("info", "policy.chosen", sentence)]


def clear_prompts(shared: SharedTables, event: PromptsCleared) -> list[Action]:
    lifted = sum(tables.quarantine.lift(event.digest) for tables in shared.models.values())
    return [Note("info", "prompt.cleared", f"an operator lifted {lifted} prompts")]
