"""Has workers of a model started and stopped: what the controller of numbers is fed, and how its
order is carried out (`fleet/scale/controller.py`)."""

from __future__ import annotations

from collections.abc import Iterator

from common.messages import KeptOrders, Role
from services.router.events import Action, CallHook, HookEnded, Note, WorkerDrained
from services.router.fleet.balance.goodput import Split
from services.router.fleet.roles import RETURN_SECONDS, ROLES, WITH_ENGINE, rollout
from services.router.fleet.scale import need as needs
from services.router.fleet.scale.controller import Order, Outcome, Phase, Verdict
from services.router.fleet.scale.need import NO_LOAD, Need
from services.router.records.gateway import Gateway
from services.router.records.states import WorkerState
from services.router.records.worker import Worker
from services.router.rules import gateway_membership, measure, operator
from services.router.tables import SharedTables, Tables

COUNT_SHARE = 0.2
"""While new workers are awaited they are counted after this share of the time between two looks:
to count means to go through all of the model."""

CARRIED_OUT = (Phase.DRAINING, Phase.ASKED)
"""Phases in which something was done for an order."""


def scale_workers(tables: Tables, now: float) -> list[Action]:
    """At each Tick: the open order goes on; every few seconds, and at once while a request waits
    for the first worker of its model, it looks whether there is need of one."""
    scale = tables.scale
    if not scale.on or tables.rebuilding or tables.draining:
        return []
    actions = _resume(tables) if scale.resumes else []
    actions += _follow(tables, scale.open, now) if scale.open is not None else []
    if scale.due(now) or (scale.open is None and _nobody_decodes(tables, now)):
        actions += _look(tables, now)
    return actions + gateway_membership.tell_order(tables, now)


def on_kept(
    shared: SharedTables, gateway: Gateway, message: KeptOrders, now: float
) -> list[Action]:
    """A gateway that uses this router says which orders it keeps. One that is not known here is an
    earlier router's; while it is open, no other one is given."""
    gateway.kept_orders = {order.model: (order.id, order.asked) for order in message.orders}
    actions: list[Action] = []
    for kept in message.orders:
        tables = shared.models.get(kept.model)
        if tables is None or not tables.scale.acts or kept.id in tables.scale.closed:
            continue
        ours = tables.scale.open
        if ours is not None and (ours.id == kept.id or ours.phase in CARRIED_OUT):
            continue
        if ours is not None:
            sentence = "an earlier router's order is still open"
            actions += _close(tables, Outcome.TAKEN_BACK, sentence, now)
        order = tables.scale.adopt(kept, now)
        sentence = f"{tables.model}: {order.what}, as an earlier router ordered: {order.why}"
        actions.append(Note("info", "scale.adopted", sentence))
    return actions


def on_hook_ended(shared: SharedTables, event: HookEnded, now: float) -> list[Action]:
    """What a hook says counts for nothing, except that it was surely never called."""
    tables = shared.models.get(event.model)
    order = tables.scale.open if tables is not None else None
    if tables is None or order is None or order.id != event.order_id:
        return []
    if not event.called:
        return _close(tables, Outcome.FAILED, event.sentence, now)
    order.heard = event.sentence
    return [Note("info", "scale.heard", f"{tables.model}: {event.sentence}", {"id": order.id})]


# ------------------------------------------------------------ looking


def _look(tables: Tables, now: float) -> list[Action]:
    scale, before = tables.scale, tables.scale.verdict
    need, sentence = _need(tables, now)
    if scale.open is not None:
        scale.verdict = Verdict(now, None, f"{scale.open.what}: {scale.open.phase}")
        return _reconsider(tables, scale.open, need, sentence, now)
    against = _against(tables, need, now) if need is not None else ""
    worker, why = (None, "")
    if need is not None and not need.out and not against:
        worker, why = _candidate(tables, need.role)
        against = "" if worker is not None else why
    if against:
        need, sentence = None, f"{sentence}; but {against}"
    scale.verdict = Verdict(now, need, sentence)
    if need is None:
        return []
    if scale.acts:
        return _propose(tables, need, sentence, worker, now)
    if before is not None and before.need is not None and before.need[:2] == need[:2]:
        return []
    what = f"{need.workers} more" if need.out else "one fewer"
    advice = f"{tables.model} needs {what} {need.role} workers: {sentence}"
    return [Note("info", "scale.advised", advice)]


def _need(tables: Tables, now: float) -> tuple[Need | None, str]:
    scale, config = tables.scale, tables.scale.config
    fleet = _fleet(tables, now)
    first = needs.without_decode(fleet)
    if first is not None:
        return first, "requests wait, and no decode worker is here"
    mixes, local_s = tables.balance.mixes(now), tables.estimates.local_prefill_seconds
    known = [mix for mix in mixes if mix is not None]
    windows = [
        needs.loads(mix, measure.curves_of(tables), local_s, separate=fleet.separate)
        for mix in known
    ]
    told = ", ".join(f"{one.prefill:.2f} prefill + {one.decode:.2f} decode" for one in windows)
    said = f"{fleet.split.name} for the work of {told or 'nobody'}"
    need, sentence = None, ""
    if len(known) == len(mixes) and known[0].requests >= tables.balance.requests_min:
        need, sentence = needs.more(fleet, windows, config)
    elif fleet.idle or not known:
        need, sentence = needs.more(fleet, (NO_LOAD,), config)
    if need is None and not sentence and (len(known) == len(mixes) or fleet.idle):
        need, sentence = needs.fewer(fleet, windows, config)
    if not sentence and len(known) < len(mixes):
        sentence = "too little was seen of the load"
    return need, sentence or f"{said}: nothing to change (floor {scale.floor})"


def _against(tables: Tables, need: Need, now: float) -> str:
    """Why nothing may be ordered now whatever the load is; empty = it may."""
    scale = tables.scale
    first = not tables.snapshots.totals(Role.DECODE).workers and need.out
    if not (scale.config.out if need.out else scale.config.in_):
        return f"[router.scale] {'out' if need.out else 'in'} names no hook"
    if now < scale.rest_until and (scale.failures or not first):
        what = f"the last order {scale.over.outcome}" if scale.over is not None else "it rests"
        return f"{what}; the next is given in {scale.rest_until - now:.0f} s at the earliest"
    if scale.acts and now - tables.started < scale.settle_s:
        return "this router has just started, and gateways may know of an earlier order"
    if scale.acts and not gateway_membership.keepers(tables):
        return "no gateway that uses this router keeps orders; start one of this version"
    for worker in _members(tables):
        if worker.next_role is not None and not worker.away:
            return f"{worker.name} is becoming a {worker.next_role} worker"
    going = rollout(_others(tables), now) or ("" if first else measure.mixed(tables))
    if going or first:
        return going
    verdict = tables.balance.verdict
    if need.out and tables.balance.acts and verdict is not None and verdict.role is not None:
        return f"a worker is to become a {verdict.role} worker first"
    idle = not need.out and _idle(tables, now)
    return "" if idle else tables.balance.watches_for(now)


def _members(tables: Tables) -> Iterator[Worker]:
    return (worker for worker in tables.workers.values() if worker.role in WITH_ENGINE)


def _others(tables: Tables) -> Iterator[Worker]:
    """Those that no order stops or has stopped: they tell whether a rollout goes on."""
    order, left = tables.scale.open, tables.scale.left
    stops = order.worker if order is not None else ""
    return (w for w in _members(tables) if w.identity not in left and w.name != stops)


def _nobody_decodes(tables: Tables, now: float) -> bool:
    """Whether a request came lately, and no decode worker is here, nor one that was lost a moment
    ago and is being started again by its supervisor."""
    scale = tables.scale
    if len(tables.waiting) and not tables.snapshots.totals(Role.DECODE).workers:
        scale.missed(now)
    return scale.asked_lately(now) and not any(_is_here(tables, w, now) for w in _decodes(tables))


def _decodes(tables: Tables) -> Iterator[Worker]:
    return (worker for worker in _members(tables) if worker.role.decodes)


def _is_here(tables: Tables, worker: Worker, now: float) -> bool:
    if not worker.away:
        return True
    return worker.identity not in tables.scale.left and now - worker.since < RETURN_SECONDS


def _fleet(tables: Tables, now: float) -> needs.Fleet:
    members, totals = list(_members(tables)), tables.snapshots.totals
    ready = [worker for worker in members if worker.ready]
    here = [worker for worker in members if _is_here(tables, worker, now)]
    busy = [w for w in ready if w.load.running or w.load.waiting or w.held]
    expected = tables.settings.expected.items()
    separate = tables.settings.mode == "disaggregated" and any(
        role is Role.PREFILL and model == tables.model for (role, _), model in expected
    )
    decodes = [worker for worker in ready if worker.role.decodes]
    return needs.Fleet(
        split=Split(totals(Role.PREFILL).workers, len(decodes)),
        here=_count(here),
        busy=_count(busy),
        running=sum(max(len(w.held), w.load.running) for w in decodes),
        slots=sum(w.capacity.max_num_seqs for w in decodes),
        separate=separate or any(worker.role.prefills for worker in here),
        floor=tables.scale.floor,
        asked=tables.scale.asked_lately(now) or bool(len(tables.waiting)),
        idle=_idle(tables, now),
    )


def _count(workers: list[Worker]) -> Split:
    """A mixed one is one of either."""
    prefills = sum(worker.role.prefills for worker in workers)
    return Split(prefills, sum(worker.role.decodes for worker in workers))


def _idle(tables: Tables, now: float) -> bool:
    """Whether all ready workers say that they have had nothing to do for `idle_ms`."""
    limit = tables.scale.config.idle_ms / 1000
    ready = [worker for worker in _members(tables) if worker.ready]
    return bool(ready) and not len(tables.waiting) and all(_rested(w, limit, now) for w in ready)


def _rested(worker: Worker, limit: float, now: float) -> bool:
    idle = worker.idle_since
    return not worker.held and idle is not None and now - idle >= limit


def _candidate(tables: Tables, role: Role) -> tuple[Worker | None, str]:
    """The worker that is soonest empty; None, and why there is none. One that can sleep is kept."""
    able = [w for w in _members(tables) if w.role is role and w.ready and w.warm is None]
    chosen = min(able, key=lambda worker: measure.emptying_cost(worker, role), default=None)
    return chosen, f"all its {role} workers are warm ones, which sleep instead"


# ------------------------------------------------------------ the open order


def _propose(
    tables: Tables, need: Need, why: str, worker: Worker | None, now: float
) -> list[Action]:
    names = frozenset(w.name for w in _members(tables) if w.connected)
    order = tables.scale.propose(need, why, names, now, worker.name if worker else "")
    sentence = f"{tables.model}: {order.what}: {why}"
    return [Note("info", "scale.ordered", sentence, {"id": order.id})]


def _follow(tables: Tables, order: Order, now: float) -> list[Action]:
    """What the order waits for has happened, or its time is over."""
    came = _newcomers(tables, order, now) if order.need.out else set()
    if order.need.out and len(came) >= order.need.workers:
        return _close(tables, Outcome.ANSWERED, f"{', '.join(sorted(came))} came", now)
    worker = None if order.need.out else _named(tables, order.worker)
    if order.worker and worker is None and now - tables.started < tables.scale.settle_s:
        return []
    if order.worker and (worker is None or worker.away or _leaves(worker)):
        outcome = Outcome.ANSWERED if order.phase is Phase.ASKED else Outcome.TAKEN_BACK
        return _close(tables, outcome, f"{order.worker} left", now)
    if now >= order.deadline:
        return _close(tables, Outcome.FAILED, _why_failed(order, worker), now)
    against = _why_it_stays(tables, order, worker) if worker is not None else ""
    if against:
        return _close(tables, Outcome.TAKEN_BACK, against, now)
    if order.phase is Phase.PROPOSED and worker is not None and _confirmed(tables, order):
        order.phase = Phase.DRAINING
        return operator.drain_worker(tables, WorkerDrained(worker.identity, on=True))
    if order.phase is Phase.DRAINING and worker is not None and _empty(worker):
        order.phase = Phase.ASKING
    elif order.phase is Phase.ASKING and _confirmed(tables, order):
        return _call(tables, order, now)
    return []


def _why_it_stays(tables: Tables, order: Order, worker: Worker) -> str:
    """Why a worker that is to stop, and whose hook was not called yet, stays; empty = it does not.
    Others may have been lost since, and somebody may have asked for a model that was going down to
    none."""
    if order.phase is Phase.ASKED:
        return ""
    if order.phase is not Phase.PROPOSED and not worker.drained:
        return f"{worker.name} was resumed or has started anew"
    if worker.role is not order.need.role:
        return f"{worker.name} has become a {worker.role} worker"
    scale, prefills = tables.scale, tables.snapshots.totals(Role.PREFILL).workers
    needed = scale.floor
    if order.need.role is Role.PREFILL:
        needed = min(1, scale.floor)
    elif prefills or worker.held or len(tables.waiting):
        needed = max(1, scale.floor)
    left = tables.snapshots.totals(order.need.role).workers - worker.ready
    if left >= needed:
        return ""
    return f"{left} other {order.need.role} workers are ready, and {needed} must stay"


def _call(tables: Tables, order: Order, now: float) -> list[Action]:
    order.phase, order.asked_at = Phase.ASKED, now
    told = tables.scale.wire(tables.model, now)
    assert told is not None
    here = tuple(sorted(w.name for w in _members(tables) if w.connected))
    sentence = f"{tables.model}: {order.what}; the hook is called"
    return [Note("info", "scale.asked", sentence, {"id": order.id}), CallHook(told, here)]


def _reconsider(
    tables: Tables, order: Order, need: Need | None, why: str, now: float
) -> list[Action]:
    """A worker that is not empty yet stays if it is needed again."""
    if order.phase not in (Phase.PROPOSED, Phase.DRAINING) or need is None or not need.out:
        return []
    return _close(tables, Outcome.TAKEN_BACK, f"it is needed again: {why}", now)


def _close(tables: Tables, outcome: Outcome, sentence: str, now: float) -> list[Action]:
    """Ends the open order."""
    order = tables.scale.close(outcome, sentence, now)
    events = {Outcome.ANSWERED: "scale.answered", Outcome.FAILED: "scale.failed"}
    event = events.get(outcome, "scale.taken_back")
    told = f"{tables.model}: {order.what}: {outcome}, {sentence}"
    note = Note("warning" if outcome is Outcome.FAILED else "info", event, told, {"id": order.id})
    worker = None if order.need.out else _named(tables, order.worker)
    actions: list[Action] = [note]
    if worker is not None and outcome is Outcome.ANSWERED:
        tables.scale.left.append(worker.identity)
    if order.worker:
        tables.scale.resumes.append(order.worker)
    return actions + _resume(tables)


def _resume(tables: Tables) -> list[Action]:
    """Workers that were drained for an order that is over, and are here, get work again: at once,
    or when they are back. One that started anew is not drained."""
    actions: list[Action] = []
    for name in list(tables.scale.resumes):
        worker = _named(tables, name)
        if worker is None or worker.away or _leaves(worker):
            continue
        if worker.state is WorkerState.JOINING and not worker.drained:  # it has not said yet
            continue
        tables.scale.resumes.remove(name)
        if worker.drained:
            actions += operator.drain_worker(tables, WorkerDrained(worker.identity, on=False))
    return actions


def _why_failed(order: Order, worker: Worker | None) -> str:
    seconds = order.deadline - order.given
    if order.phase is Phase.DRAINING and worker is not None:
        return f"it still held {len(worker.held)} requests after {seconds:.0f} s"
    if order.phase is not Phase.ASKED:
        return f"gateways did not confirm it in {seconds:.0f} s"
    missing = "not enough of them came" if order.need.out else "it is still here"
    heard = f" ({order.heard})" if order.heard else ""
    return f"{missing} after {seconds:.0f} s{heard}"


def _newcomers(tables: Tables, order: Order, now: float) -> set[str]:
    """Workers of the role that are here and were not when the order was given. They are counted
    now and then; in between there are none."""
    if now - order.counted_at < tables.scale.look_s * COUNT_SHARE:
        return set()
    order.counted_at = now
    return {
        worker.name
        for worker in _members(tables)
        if order.need.role in (*worker.role.parts, worker.home[0])
        and not worker.away
        and worker.name not in order.names
    }


def _named(tables: Tables, name: str) -> Worker | None:
    """The newest incarnation of the worker of this name."""
    newest = (tables.shared.names.get((role, name), "") for role in ROLES)
    rows = [tables.workers[identity] for identity in newest if identity in tables.workers]
    return next((row for row in rows if not row.away), rows[0] if rows else None)


def _leaves(worker: Worker) -> bool:
    return worker.state is WorkerState.DRAINING


def _empty(worker: Worker) -> bool:
    """It has confirmed that it is drained, and its engine has nothing."""
    load = worker.load
    confirmed = worker.drained and worker.drain_ordered is None
    return confirmed and not (worker.held or load.running or load.waiting)


def _confirmed(tables: Tables, order: Order) -> bool:
    """Whether all of them keep the order as it is."""
    kept = [gateway.kept_orders or {} for gateway in gateway_membership.keepers(tables)]
    return bool(kept) and all(one.get(tables.model) == order.kept_as for one in kept)
