"""The figures that admission reads between two Ticks, the slow start of returned workers, which
warm workers are woken, which worker changes its role, and when, and whether a running stream should
change its worker."""

from __future__ import annotations

import math
from itertools import islice

from common.messages import Role, Wake
from services.router.admission import gates
from services.router.events import Action, Note, RoleOrdered, Send
from services.router.fleet import warm_workers
from services.router.fleet.balance.controller import Ordered, Verdict
from services.router.fleet.balance.goodput import Curves, Split
from services.router.fleet.rebalance import Load, Mover
from services.router.fleet.roles import ROLES, WITH_ENGINE, leaves
from services.router.fleet.warm_workers import WarmWorker
from services.router.placement.types import WaitFor, WorkerView
from services.router.records.attempt import Attempt
from services.router.records.move import MoveReason
from services.router.records.states import WorkerState
from services.router.records.worker import Worker
from services.router.rules import admit, moves, operator, worker_trust
from services.router.tables import Tables

WAKE_ORDER_SECONDS = 2.0
"""An order to wake or to sleep is repeated after this time, if the worker has not said since that
it obeyed."""
MOVERS_MAX = 64
"""Streams of one worker that are looked at for a move."""


def measure(tables: Tables, now: float) -> None:
    """At each Tick, in one pass over the workers."""
    state, config = tables.admission, tables.admission.config
    decodes = [w for w in tables.workers.values() if w.role.decodes]
    ready = [w for w in decodes if w.ready]
    state.capacity = _capacity(decodes, config.capacity_memory_ms / 1000, now)
    kv = sum(w.capacity.kv_blocks for w in ready)
    used = sum(w.load.kv_used * w.capacity.kv_blocks for w in ready)
    state.kv_used = used / kv if kv else 0.0
    ahead = tables.settings.slots_ahead_max
    state.largest_worker_slots = max((w.capacity.requests_max(ahead) for w in ready), default=0)
    overdue = now - config.decode_queue_overdue_ms / 1000
    state.overdue_starts = 0
    for since in state.awaiting_first_token.values():
        if since > overdue:
            break
        state.overdue_starts += 1
    state.closed = gates.decode_queue(
        state.overdue_starts, len(ready), config.decode_queue_per_worker
    )
    state.closed = state.closed or gates.kv_pressure(state.kv_used, config.kv_refuse)
    worker_trust.set_slots(tables, now)


def wake_workers(tables: Tables, now: float) -> list[Action]:
    """At each Tick: orders one warm worker to wake or to sleep, if need be."""
    warm = {w.name: w for w in tables.workers.values() if w.warm is not None and _may_wake(w)}
    if not warm or tables.rebuilding or tables.draining:
        return []
    wanted = warm_workers.choose(
        [_warm_worker(worker, now) for worker in warm.values()],
        awake=tables.snapshots.totals(Role.DECODE).workers,
        floor=tables.settings.floors.get(tables.model, 1),
        queue_s=_queue_seconds(tables),
        idle_max_s=tables.settings.warm_idle_ms / 1000,
    )
    if wanted is None:
        return []
    worker, ordered = warm[wanted.name], warm[wanted.name].wake_ordered
    worker.wake_ordered = (wanted.on, now)
    send = Send(worker.identity, Wake(on=wanted.on))
    if ordered is not None and ordered[0] is wanted.on:
        return [send]
    event, what = ("worker.woken", "wakes") if wanted.on else ("worker.asleep", "sleeps again")
    sentence = f"decode worker {worker.name} of {tables.model} {what}: {wanted.sentence}"
    return [send, Note("info", event, sentence, {"worker": worker.name})]


def look_at_balance(tables: Tables, now: float) -> list[Action]:
    """At each Tick; it looks every few seconds. What it would do is told once while it may not act;
    each order is told. A role whose last ready worker is about to leave it keeps that worker."""
    balance = tables.balance
    if tables.settings.mode != "disaggregated" or tables.rebuilding or tables.draining:
        return []
    actions = _keep_last(tables, now) if balance.acts else []
    if not balance.due(now):
        return actions
    for worker in tables.workers.values():
        if worker.role_state.epoch and worker.role in WITH_ENGINE:
            balance.record_change(worker.role_state.since)
    before = balance.verdict
    split = Split(*(tables.snapshots.totals(role).workers for role in ROLES))
    verdict = balance.look(split, curves_of(tables), now, mixed(tables) or _changing(tables))
    if verdict.role is None:
        return actions
    chosen, why = _candidate(tables, verdict.role, now)
    if chosen is None:
        balance.hold_back(why)
        return actions
    if balance.acts:
        return [*actions, *_order(tables, chosen, verdict.role, verdict, now)]
    if before is not None and before.role is verdict.role:
        return actions
    sentence = f"{tables.model}: a worker should become a {verdict.role} worker: {verdict.sentence}"
    return [*actions, Note("info", "balance.advised", sentence)]


def _order(
    tables: Tables, worker: Worker, role: Role, verdict: Verdict, now: float
) -> list[Action]:
    tables.balance.record_order(Ordered(now, worker.name, role, verdict.sentence))
    sentence = f"{tables.model}: {worker.role} {worker.name} is to become a {role} worker"
    note = Note("info", "balance.ordered", f"{sentence}: {verdict.sentence}")
    return [note, *operator.order_role(tables, RoleOrdered(worker.identity, role))]


def _keep_last(tables: Tables, now: float) -> list[Action]:
    """Takes orders back, whosever they are, if the workers that would have stayed are gone since,
    or another router ordered them away."""
    actions: list[Action] = []
    for role in ROLES:
        if tables.snapshots.totals(role).workers:
            continue
        for worker in tables.workers.values():
            wanted = worker.next_role if role in worker.role.parts else None
            if wanted is not None and leaves(role, wanted) and not worker.away:
                why = f"no other {role} worker of {tables.model} is ready any more"
                tables.balance.record_order(Ordered(now, worker.name, worker.role, why))
                note = f"{worker.name} stays a {worker.role} worker, because {why}"
                actions.append(Note("warning", "balance.kept", note))
                actions += operator.order_role(tables, RoleOrdered(worker.identity, worker.role))
    return actions


def mixed(tables: Tables) -> str:
    """Which worker is mixed, so that nobody can say how much of either role there is; empty = none
    is."""
    found = (w for w in tables.workers.values() if w.role is Role.MIXED and not w.away)
    worker = next(found, None)
    if worker is None:
        return ""
    return f"{worker.name} is a mixed worker: while there is one, an operator decides on workers"


def _changing(tables: Tables) -> str:
    """Which worker changes its role just now, by whosever order; empty = none does."""
    for worker in tables.workers.values():
        if worker.next_role is not None and not worker.away:
            left = f"{len(worker.held)} requests have to move or finish first"
            if worker.role_state.ordered is not None:
                left = "it has not confirmed the order yet"
            return f"{worker.name} is becoming a {worker.next_role} worker: {left}"
    return ""


def _candidate(tables: Tables, role: Role, now: float) -> tuple[Worker | None, str]:
    """The worker that is soonest empty, of those that may take the role; None, and why none may.
    Among equals one that has the role in the fleet file."""
    why, able = "no worker could take it", []
    for worker in tables.workers.values():
        if not worker.ready or worker.role is role or worker.role not in ROLES:
            continue
        why_not = operator.why_no_role(tables, worker, role, now)
        if why_not:
            why = f"{worker.name} cannot: {why_not}"
        else:
            able.append(worker)
    return min(able, key=lambda worker: emptying_cost(worker, role), default=None), why


def emptying_cost(worker: Worker, role: Role) -> tuple[int, int, bool, str]:
    return len(worker.held), worker.held_tokens, worker.home[0] is not role, worker.name


def curves_of(tables: Tables) -> Curves:
    estimates, totals = tables.estimates, tables.snapshots.totals(Role.DECODE)
    workers = max(1, totals.workers)
    return Curves(
        estimates.prefill_seconds,
        estimates.step_seconds,
        lambda tokens: estimates.exposed_transfer_s(
            tokens * totals.latest.kv_token_bytes, estimates.prefill_seconds(tokens)
        ),
        max(1, totals.slots // workers),
        totals.kv_tokens_max // workers,
    )


def _may_wake(worker: Worker) -> bool:
    """Whether it would be ready if it were awake."""
    return worker.state is WorkerState.READY and not (worker.drained or worker.excluded)


def _warm_worker(worker: Worker, now: float) -> WarmWorker:
    assert worker.warm is not None
    ordered, idle = worker.wake_ordered, worker.idle_since
    fresh = ordered is not None and now - ordered[1] < WAKE_ORDER_SECONDS
    return WarmWorker(
        worker.name,
        worker.asleep,
        waking=worker.asleep and fresh,
        wake_s=worker.warm.wake_ms / 1000,
        idle_s=0.0 if fresh or worker.held or idle is None else now - idle,
    )


def _queue_seconds(tables: Tables) -> float:
    """How long a request like the oldest would wait behind all that waits; 0 = nothing does,
    infinite = no decode worker is there to take it."""
    oldest = next((attempt for attempt in tables.waiting if not attempt.abandoned), None)
    if oldest is None:
        return 0.0
    if not tables.snapshots.totals(Role.DECODE).workers:
        return math.inf
    return admit.predicted(tables, oldest, tables.waiting.backlog()).wait


def _capacity(decodes: list[Worker], memory: float, now: float) -> float:
    """Healthy share of the slots of the workers that are here or were lost less than `memory`
    seconds ago. A worker that drains leaves on purpose and does not count, nor does one that
    sleeps, here or lost."""
    healthy = known = 0
    for worker in decodes:
        if worker.asleep:
            continue
        lost = worker.away and not worker.left_drained and now - worker.since <= memory
        down = worker.excluded and not worker.drained
        if worker.ready:
            healthy += worker.capacity.max_num_seqs
        if worker.ready or worker.state is WorkerState.SUSPECT or lost or down:
            known += worker.capacity.max_num_seqs
    return healthy / known if known else 1.0


# ------------------------------------------------------------ streams


def rebalance_streams(tables: Tables, now: float) -> list[Action]:
    """At each Tick; it looks every second, and one stream moves at a time. In `dry` mode a stream
    that should move is told once."""
    controller = tables.rebalance
    if not controller.due(now):
        return []
    if any(_rebalances(attempt) for attempt in tables.leaving.values()):
        controller.stay("a stream is on its way", now)
        return []
    loads = [_load(view) for view in tables.snapshots.decodes()]
    if len(loads) < 2:
        controller.stay("there is no second decode worker", now)
        return []
    source = max(loads, key=lambda load: load.streams)
    target = min(loads, key=lambda load: (load.streams, -load.kv_free))
    if source.streams <= target.streams:
        controller.stay("all decode workers have as many streams", now)
        return []
    before = controller.verdict
    movers = _movers(tables, source, target, now)
    step_s = tables.estimates.step_seconds
    verdict = controller.look((source, target), movers, _head_need(tables), step_s, now)
    if verdict.key is None:
        return []
    attempt = tables.attempts[verdict.key]
    if controller.mode == "on":
        sentence = f"this stream leaves {source.name} for {target.name}: {verdict.sentence}"
        actions = moves.order_move(
            tables, attempt, MoveReason.REBALANCE, sentence, now, target.identity
        )
        if actions:
            controller.record_move(source.identity, target.identity, now)
        return actions
    if before is not None and before.key == verdict.key:
        return []
    fields: dict[str, object] = {"request_id": attempt.request_id}
    sentence = f"{attempt.request_id} should go on at {target.name}: {verdict.sentence}"
    return [Note("info", "rebalance.advised", sentence, fields)]


def _rebalances(attempt: Attempt) -> bool:
    order = attempt.leaves_by
    return order is not None and order.reason is MoveReason.REBALANCE


def _load(view: WorkerView) -> Load:
    free = view.kv_tokens_max - view.kv_tokens
    slots = view.requests_max - view.requests
    return Load(view.identity, view.name, view.decoding, slots, free)


def _movers(tables: Tables, source: Load, target: Load, now: float) -> list[Mover]:
    """Those that may leave, and have not moved of late."""
    worker, taker = tables.workers[source.identity], tables.workers[target.identity]
    found = []
    for key in islice(reversed(worker.decoding), MOVERS_MAX):
        attempt = tables.attempts[key]
        if attempt.leaves_by is not None or moves.cools_down(attempt, now):
            continue
        if moves.why_it_stays(tables, attempt):
            continue
        if moves.why_not_taken(tables, attempt, worker, taker):
            continue
        found.append(_mover(tables, attempt, source, taker.view(), now))
    return found


def _mover(tables: Tables, attempt: Attempt, source: Load, taker: WorkerView, now: float) -> Mover:
    estimates, step_s = tables.estimates, tables.estimates.step_seconds(source.streams)
    made = (now - (attempt.decode_started or now)) / max(1e-6, step_s)
    likely = min(attempt.output_tokens or attempt.request.max_tokens, attempt.request.max_tokens)
    tokens = attempt.request.prompt_tokens + round(min(made, attempt.request.max_tokens))
    seconds = estimates.transfer_seconds(taker.kv_bytes(tokens, 0))
    pause_s = estimates.handoff_latency_s() + seconds + step_s
    return Mover(
        attempt.key,
        tables.workers[source.identity].held[attempt.key],
        taker.kv_need(attempt.request.promised_tokens),
        max(0, likely - round(made)),
        pause_s,
    )


def _head_need(tables: Tables) -> int:
    """KV tokens that the head of the queue waits for; 0 = it waits for something else."""
    if not len(tables.waiting):
        return 0
    first = tables.waiting.head()
    view = next(iter(tables.snapshots.decodes()), None)
    if view is None or first.waits_for is not WaitFor.KV:
        return 0
    return view.kv_need(first.request.promised_tokens)
