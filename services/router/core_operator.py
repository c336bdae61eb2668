"""What an operator orders: drain, resume, evict. Called by `core.py` and `core_peers.py` only.

An order to drain is kept by the worker and comes back in its Beats, so that it outlives a restart
of the router and is known to every router; until a Beat agrees, the order is said again.
"""

from __future__ import annotations

from common.errors import Code
from common.messages import Beat, Drain
from services.router import core_health, core_requests
from services.router.events import Action, Note, RequestEvicted, Send, WorkerDrained, WorkerEvicted
from services.router.records import Worker
from services.router.state import TryState
from services.router.tables import Tables

BY_OPERATOR = "an operator evicted it"


def ordered(
    tables: Tables, event: WorkerDrained | WorkerEvicted | RequestEvicted, now: float
) -> list[Action]:
    match event:
        case WorkerDrained():
            return drain(tables, event)
        case WorkerEvicted():
            return evict_worker(tables, event, now)
        case RequestEvicted():
            return evict_request(tables, event, now)


def drain(tables: Tables, event: WorkerDrained) -> list[Action]:
    """Idempotent. Unknown workers are the verb's to refuse."""
    worker = tables.workers.get(event.worker)
    if worker is None:
        return []
    worker.drain_ordered = event.on
    return [Send(worker.identity, Drain(on=event.on)), *_set(tables, worker, drained=event.on)]


def beat(tables: Tables, worker: Worker, message: Beat) -> list[Action]:
    """The worker's word counts, except against an order that it has not heard yet."""
    if worker.drain_ordered is not None and worker.drain_ordered is not message.drained:
        return [Send(worker.identity, Drain(on=worker.drain_ordered))]
    worker.drain_ordered = None
    return _set(tables, worker, drained=message.drained)


def _set(tables: Tables, worker: Worker, *, drained: bool) -> list[Action]:
    if worker.drained is drained:
        return []
    worker.set_drained(drained)
    tables.workers_changed = True
    what = f"gets nothing new, and finishes {len(worker.held)} requests" if drained else "gets work"
    note = f"{worker.role} {worker.name} {what}: an operator's order"
    return [Note("info", "worker.drained" if drained else "worker.resumed", note)]


def evict_worker(tables: Tables, event: WorkerEvicted, now: float) -> list[Action]:
    """It is drained, too, or it would be given the next one at once."""
    worker = tables.workers.get(event.worker)
    if worker is None:
        return []
    keys = list(worker.held)
    actions = drain(tables, WorkerDrained(worker.identity, on=True))
    sentence = f"{worker.role} worker {worker.name} was evicted by an operator"
    actions += core_health.give_up(tables, worker, sentence, now)
    actions += core_health.aborts(worker, keys, BY_OPERATOR)
    note = Note("warning", "worker.evicted", f"{sentence}; it held {len(keys)} requests")
    return [*actions, note]


def evict_request(tables: Tables, event: RequestEvicted, now: float) -> list[Action]:
    """Its client hears an error; with this code its gateway takes it nowhere else. Idempotent."""
    each = tables.tries.get((event.request_id, event.attempt))
    if each is None:
        return []
    if each.state is TryState.QUEUED:
        return core_requests.refuse(tables, each, Code.CANCELLED, BY_OPERATOR, now)
    told = each.state is not TryState.ABORTING
    actions = core_requests.abort(tables, each, BY_OPERATOR, now)
    if told:
        actions.append(
            core_requests.failed_answer(each.gateway, each.key, BY_OPERATOR, Code.CANCELLED)
        )
    return actions
