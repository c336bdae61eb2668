"""What an operator orders: drain, resume, role, evict, move, limits, policy, adapters.

The admin verbs have checked the values. An order to drain, or to take another role, is kept by the
worker and comes back in its Beats, so that it outlives a restart of the router and every router
knows it. Until a Beat agrees, the order is sent again. An order for a LoRA adapter goes to all
workers of the model, and to those that join later; each answers, and whoever gave the order through
a gateway is told when all have.
"""

from __future__ import annotations

from typing import Literal

from common.errors import Code
from common.identity import AttemptKey, name_of
from common.messages import (
    AdapterDone,
    AdapterTold,
    AskAdapter,
    Beat,
    Become,
    Drain,
    OrderAdapter,
    OrderStore,
    Role,
)
from common.messages.parts import ADAPTER_ERROR_CHARS_MAX
from common.model.adapters import name_of_adapter, why_no_name
from common.prefix import HASH_BYTES
from services.router.events import (
    Action,
    AdapterOrdered,
    LimitsChosen,
    Note,
    PolicyChosen,
    PromptsCleared,
    RequestEvicted,
    RequestMoved,
    RoleOrdered,
    Send,
    StoreOrdered,
    WorkerDrained,
    WorkerEvicted,
)
from services.router.fleet.roles import why_not
from services.router.records.adapters import ANSWER_SECONDS, AdapterOrder
from services.router.records.attempt import Attempt
from services.router.records.gateway import Gateway
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


def order_role(tables: Tables, event: RoleOrdered) -> list[Action]:
    """Unknown workers are the verb's to refuse. Idempotent."""
    worker = tables.workers.get(event.worker)
    if worker is None or event.role is (worker.next_role or worker.role):
        return []
    worker.set_role_order(event.role, worker.role_state.becomes)
    order = Become(role=event.role, epoch=worker.role_state.epoch + 1)
    left = f"{len(worker.held)} requests move or finish"
    sentence = f"{worker.role} {worker.name} stays a {event.role} worker: an order"
    if event.role is not worker.role:
        sentence = f"{worker.role} {worker.name} becomes a {event.role} worker: {left}"
    return [Send(worker.identity, order), Note("info", "role.ordered", sentence)]


def why_no_role(tables: Tables, worker: Worker, role: Role, now: float) -> str:
    """Why this worker may not be ordered to take the role now; empty = it may."""
    reason = why_not(tables.workers.values(), worker, role, tables.settings.mode, now)
    if reason or role is worker.role:
        return reason
    denied = tables.shared.denied_to_host(worker.host, role, worker.name)
    if not denied:
        return ""
    return (
        f"host {worker.host} may not speak for a {role} worker {worker.name}: {denied}; "
        "`baton keygen add --roles prefill,decode` gives its entry both"
    )


def confirm_role(worker: Worker, message: Beat) -> list[Action]:
    """The worker's own word counts, except against an order that it has not received yet."""
    ordered = worker.role_state.ordered
    if ordered is None or message.becomes is (ordered if ordered is not worker.role else None):
        worker.set_role_order(None, message.becomes)
        return []
    return [Send(worker.identity, Become(role=ordered, epoch=worker.role_state.epoch + 1))]


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
    # The only worker that is left has room for more from now on.
    worker_trust.set_slots(tables, now)
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
    if worker.health_verdict is not None:
        reason = f"its KV is not trusted, because {worker.health_verdict.reason}"
        return dict.fromkeys(worker.held, reason)
    return {key: _why_dropped(tables, tables.attempts[key], worker) for key in worker.held}


def _why_dropped(tables: Tables, attempt: Attempt, worker: Worker) -> str:
    if attempt.decode != worker.identity:
        return "prompts that are computed for others are no streams to move"
    stays = moves.why_it_stays(tables, attempt)
    if stays or moves.takers(tables, attempt, worker):
        return stays
    return "no other decode worker has room"


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


def order_store(event: StoreOrdered) -> list[Action]:
    """Workers and pools report what they keep in their Beats."""
    sends: list[Action] = []
    for identity, names in event.names.items():
        sends.append(Send(identity, OrderStore(action=event.action, names=names)))
        blocks = len(names) // HASH_BYTES
        sentence = f"{name_of(identity)} is to {event.action} {blocks} blocks: an operator's order"
        sends.append(Note("info", "store.ordered", sentence))
    return sends


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


def ask_adapter(
    shared: SharedTables, gateway: Gateway, message: AskAdapter, now: float
) -> list[Action]:
    """A client with an operator's key orders it; its gateway waits for the answer."""
    asker = (gateway.identity, message.ask_id)
    tables = _base_of(shared, message)
    if tables is None:
        known = ", ".join(shared.models)
        sentence = f"name the model that has, or gets, the adapter {message.name!r}: {known}"
        return [_told(asker, Code.INVALID_REQUEST, sentence)]
    return _order_adapter(tables, message.name, message.path, now, asker)


def order_adapter(shared: SharedTables, event: AdapterOrdered, now: float) -> list[Action]:
    return _order_adapter(shared.models[event.model], event.name, event.path, now)


def _base_of(shared: SharedTables, message: AskAdapter) -> Tables | None:
    models = shared.models
    if message.model or len(models) == 1:
        return models.get(message.model or next(iter(models)))
    if message.path:
        return None
    return next((t for t in models.values() if adapter_holders(t, message.name)), None)


def adapter_holders(tables: Tables, name: str) -> list[Worker]:
    """The workers that have an adapter of this name, or could not load it."""
    return [
        worker
        for worker in tables.workers.values()
        if not worker.away
        and any(name in (one.id, name_of_adapter(one.id)) for one in worker.adapter_statuses)
    ]


def _order_adapter(
    tables: Tables, name: str, path: str, now: float, asker: tuple[str, int] | None = None
) -> list[Action]:
    fault = why_no_name(name)
    if fault:
        return _answered(asker, Code.INVALID_REQUEST, fault)
    workers = adapter_holders(tables, name)
    if path:
        workers = [worker for worker in tables.workers.values() if not worker.away]
    if not workers:
        code = Code.NO_CAPACITY if path else Code.NOT_FOUND
        what = f"no worker of {tables.model} is here" if path else f"no worker has {name!r}"
        return _answered(asker, code, what)
    waiting = dict.fromkeys(worker.identity for worker in workers)
    tables.adapter_orders.give(AdapterOrder(name, path, now, waiting, asker))
    order = OrderAdapter(name=name, path=path)
    what = f"load the adapter {name} from {path}" if path else f"let the adapter {name} go"
    sentence = f"{len(workers)} workers of {tables.model} are to {what}: an operator's order"
    return [
        *(Send(worker.identity, order) for worker in workers),
        Note("info", "adapter.ordered", sentence),
    ]


def on_adapter_done(tables: Tables, worker: Worker, message: AdapterDone) -> list[Action]:
    """Also of the adapters of its file, which nobody ordered."""
    order = tables.adapter_orders.latest.get(message.name)
    if order is None or order.path != message.path or worker.identity not in order.waiting:
        return []
    del order.waiting[worker.identity]
    if message.error:
        order.errors[worker.name] = message.error[:ADAPTER_ERROR_CHARS_MAX]
    return _order_over(tables, order)


def answer_late_orders(tables: Tables, now: float) -> list[Action]:
    """At each Tick: workers that are gone, or silent for too long, are not waited for."""
    actions: list[Action] = []
    for order in list(tables.adapter_orders.latest.values()):
        late = now - order.since >= ANSWER_SECONDS
        for identity in list(order.waiting):
            worker = tables.workers.get(identity)
            if late or worker is None or worker.away:
                del order.waiting[identity]
                order.errors[name_of(identity)] = "it did not answer"
                actions += _order_over(tables, order)
    return actions


def repeat_adapter_orders(tables: Tables, worker: Worker) -> list[Action]:
    """A worker that is new here gets what the others were ordered."""
    orders = tables.adapter_orders.lacking(worker.adapters)
    return [Send(worker.identity, OrderAdapter(name=o.name, path=o.path)) for o in orders]


def _order_over(tables: Tables, order: AdapterOrder) -> list[Action]:
    """Once all workers have answered."""
    if order.waiting:
        return []
    asker, order.asker = order.asker, None
    if order.path and not any(
        order.name == name_of_adapter(adapter)
        for worker in tables.workers.values()
        for adapter in worker.adapters
    ):
        tables.adapter_orders.withdraw(order)
    done = f"the adapter {order.name} is {'loaded' if order.path else 'let go'}"
    sentence = order.sentence
    code = Code.INVALID_REQUEST if sentence else None
    level: Literal["info", "warning"] = "warning" if sentence else "info"
    note = Note(level, "adapter.done", f"{order.name}: {sentence}" if sentence else done)
    return [*_answered(asker, code, sentence or done), note]


def _answered(asker: tuple[str, int] | None, code: Code | None, sentence: str) -> list[Action]:
    return [] if asker is None else [_told(asker, code, sentence)]


def _told(asker: tuple[str, int], code: Code | None, sentence: str) -> Send:
    gateway, ask_id = asker
    return Send(gateway, AdapterTold(ask_id=ask_id, code=code or "", message=sentence))
