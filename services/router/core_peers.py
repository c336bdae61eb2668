"""Who is there: Hello, Beat, Leaving, loss, silence, return. Called by `core.py` only.

A peer is one incarnation. A newer incarnation of the same name fences the older one for good. One
that was merely out of reach comes back by Hello or by a Beat (its process never noticed); what was
given up meanwhile is then aborted on a worker, and told as `Failed` to a gateway. A worker gets
work only after a Beat has shown its load. When the router itself was stopped, the silence it
then finds proves nothing, and is forgiven.
"""

from __future__ import annotations

from common.errors import Code
from common.messages import (
    WIRE_VERSION,
    Abort,
    Beat,
    Hello,
    Introduce,
    Leaving,
    Refused,
    Role,
    ToRouter,
    Welcome,
)
from services.router import core_requests, hello_check
from services.router.events import Action, Note, Send
from services.router.records import Gateway, Worker
from services.router.state import TryState, WorkerState
from services.router.tables import Tables

ORPHANS_MAX = 4_096
LATE_TICK_SECONDS = 1.0


def hello(tables: Tables, peer: str, message: Hello, now: float) -> list[Action]:
    objection = hello_check.objection(tables, peer, message)
    if objection is not None:
        code, sentence = objection
        tables.counts.drop("refused hello")
        return [
            Send(peer, Refused(code=code, message=sentence)),
            Note("warning", "peer.refused", sentence, {"peer": peer}),
        ]
    actions = _fence_older(tables, peer, message, now)
    tables.names[message.role, message.name] = peer
    settings = tables.settings
    welcome = Welcome(
        wire_version=WIRE_VERSION, name=settings.name, incarnation=settings.incarnation
    )
    actions.append(Send(peer, welcome))
    if message.role is Role.GATEWAY:
        return actions + _hello_gateway(tables, peer, message, now)
    return actions + _hello_worker(tables, peer, message, now)


def _fence_older(tables: Tables, peer: str, message: Hello, now: float) -> list[Action]:
    older = tables.names.get((message.role, message.name))
    if older is None or older == peer:
        return []
    actions = gone(tables, older, "a new incarnation took its place", now)
    tables.workers.pop(older, None)
    tables.fence(older, peer)
    return actions


def turn_away(tables: Tables, peer: str, message: ToRouter) -> list[Action]:
    """A worker whose name another process has taken lives on and does not know it: at its next Beat
    it hears `Refused`, and ends. What it holds is nobody's any more."""
    by = tables.fenced.get(peer)
    if by is None or peer in tables.gateways or not isinstance(message, Beat):
        return []
    sentence = f"{peer} was replaced by {by}; two processes use one name"
    return [Send(peer, Refused(code=Code.WORKER_LOST, message=sentence))]


def _hello_gateway(tables: Tables, peer: str, message: Hello, now: float) -> list[Action]:
    gateway = tables.gateways.get(peer)
    if gateway is None:
        gateway = Gateway(
            identity=peer,
            name=message.name,
            incarnation=message.incarnation,
            stream_endpoint=message.stream_endpoint,
            pid=message.pid,
            last_seen=now,
            since=now,
        )
        tables.gateways[peer] = gateway
    gateway.unqueued.clear()
    actions = _return_gateway(gateway, now)
    note = Note("info", "gateway.joined", f"gateway {gateway.name} is here")
    return [*actions, Send(peer, tables.fleet), note]


def _return_gateway(gateway: Gateway, now: float) -> list[Action]:
    if gateway.gone:
        gateway.gone, gateway.since, gateway.reason = False, now, ""
    gateway.last_seen = now
    sentence = "the request was lost with its worker or with this gateway's connection"
    keys = [*gateway.lost, *gateway.unqueued]
    gateway.unqueued.clear()
    return [core_requests.failed_answer(gateway.identity, key, sentence) for key in keys]


def _hello_worker(tables: Tables, peer: str, message: Hello, now: float) -> list[Action]:
    worker = tables.workers.get(peer)
    if worker is not None and worker.state is not WorkerState.GONE:
        worker.last_seen = now
        return []
    if worker is not None:
        return _return_worker(tables, worker, now)
    assert message.capacity is not None
    grant, changed = tables.settings.kv_grant_max, tables.board.changed
    tables.workers[peer] = Worker.of(peer, message, message.capacity, grant, changed, now)
    tables.workers[peer].returned = peer in tables.fenced.values()
    tables.workers_changed = True
    sentence = f"{message.role} {message.name} says hello; it gets work after its first beat"
    return [Note("info", "worker.joining", sentence, {"fingerprint": message.fingerprint})]


def _return_worker(tables: Tables, worker: Worker, now: float) -> list[Action]:
    worker.move(WorkerState.JOINING, "came back", now)
    worker.last_seen, worker.empty_since = now, None
    tables.workers_changed = True
    reason = "given up while the worker was out of reach"
    aborts: list[Action] = [
        Send(worker.identity, Abort(request_id=key[0], attempt=key[1], reason=reason))
        for key in worker.orphans
    ]
    sentence = f"{worker.name} is back; {len(aborts)} requests given up meanwhile are aborted"
    return [*aborts, Note("info", "worker.returned", sentence)]


def _introduce(tables: Tables, newcomer: Worker) -> list[Action]:
    """Pairs that may hand KV over connect now, so that no request pays for it."""
    others = [
        worker
        for worker in tables.workers.values()
        if worker.role is not newcomer.role
        and worker.ready
        and worker.fingerprint == newcomer.fingerprint
    ]
    if newcomer.role is Role.DECODE:
        return [Send(newcomer.identity, Introduce(kv_address=p.kv_address)) for p in others]
    introduction = Introduce(kv_address=newcomer.kv_address)
    return [Send(decode.identity, introduction) for decode in others]


def beat(tables: Tables, peer: Worker | Gateway, message: Beat, now: float) -> list[Action]:
    if isinstance(peer, Gateway):
        return _return_gateway(peer, now) if peer.gone else []
    if peer.state is WorkerState.GONE:
        return _return_worker(tables, peer, now)
    if message.load is None:
        return []
    peer.told_kv(message, now)
    joining = peer.state is WorkerState.JOINING
    tables.freed |= peer.reported(message.load, now)
    actions: list[Action] = []
    if joining:
        peer.orphans.clear()
        peer.move(WorkerState.READY, "", now)
        tables.workers_changed = tables.freed = True
        sentence = f"{peer.role} {peer.name} is ready"
        actions.append(Note("info", "worker.ready", sentence, {"pid": peer.pid}))
        actions += _introduce(tables, peer)
    if peer.role is Role.DECODE:
        actions += _give_up_unheld(tables, peer, now)
    return actions


def _give_up_unheld(tables: Tables, worker: Worker, now: float) -> list[Action]:
    """An engine empty for `idle_seconds` holds none of what it was given before: an `Ended` was
    lost with a connection, and its credits would be lost with it."""
    since, limit = worker.empty_since, tables.settings.idle_seconds
    if not worker.held or since is None or now - since < limit:
        return []
    actions: list[Action] = []
    for key in list(worker.held):
        each = tables.tries[key]
        if each.placed is not None and now - each.placed >= limit:
            sentence = f"{worker.name} no longer holds the request and its end was not heard"
            actions += core_requests.fail(tables, each, sentence, now)
            abort = Abort(request_id=key[0], attempt=key[1], reason="given up")
            actions.append(Send(worker.identity, abort))
    return actions


def leaving(tables: Tables, peer: Worker | Gateway, message: Leaving, now: float) -> list[Action]:
    if isinstance(peer, Gateway):
        peer.leaving, peer.reason = True, message.reason
        return [Note("info", "gateway.leaving", f"gateway {peer.name} drains: {message.reason}")]
    if peer.state in (WorkerState.DRAINING, WorkerState.GONE):
        return []
    peer.move(WorkerState.DRAINING, message.reason, now)
    tables.workers_changed = True
    sentence = f"{peer.role} {peer.name} drains {len(peer.held)} requests: {message.reason}"
    return [Note("info", "worker.draining", sentence)]


def seen(tables: Tables, peer: Worker | Gateway, now: float) -> None:
    """Any traffic is a sign of life."""
    peer.last_seen = now
    if isinstance(peer, Worker) and peer.state is WorkerState.SUSPECT:
        peer.move(peer.before_suspect, "", now)
        tables.workers_changed = tables.freed = True


def gone(tables: Tables, peer: str, reason: str, now: float) -> list[Action]:
    """Idempotent."""
    worker = tables.workers.get(peer)
    if worker is not None:
        return _worker_gone(tables, worker, reason, now)
    gateway = tables.gateways.get(peer)
    return [] if gateway is None else _gateway_gone(tables, gateway, reason, now)


def _worker_gone(tables: Tables, worker: Worker, reason: str, now: float) -> list[Action]:
    if worker.state is WorkerState.GONE:
        return []
    lost = list(worker.held)
    sentence = f"{worker.role} worker {worker.name} was lost: {reason}"
    note = Note("warning", "worker.lost", f"{sentence}; it held {len(lost)} requests")
    if worker.state is WorkerState.DRAINING and not lost:
        note = Note("info", "worker.left", f"{worker.role} worker {worker.name} drained and left")
    actions: list[Action] = [note]
    for key in lost:
        each = tables.tries[key]
        if worker.role is Role.DECODE:
            actions += core_requests.fail(tables, each, sentence, now)
        else:
            core_requests.prefill_lost(tables, each, sentence)
    worker.orphans = (worker.orphans + lost)[-ORPHANS_MAX:]
    tables.placing.prefixes.clear(worker.identity)
    worker.foreign_tokens = worker.foreign_requests = 0
    worker.move(WorkerState.GONE, reason, now)
    tables.workers_changed = True
    return actions


def _gateway_gone(tables: Tables, gateway: Gateway, reason: str, now: float) -> list[Action]:
    if gateway.gone:
        return []
    gateway.gone, gateway.since, gateway.reason = True, now, reason
    sentence = f"gateway {gateway.name} was lost: {reason}"
    actions: list[Action] = [Note("warning", "gateway.lost", sentence)]
    for key in list(gateway.tries):
        each = tables.tries[key]
        if each.state in (TryState.PLACED, TryState.DECODING):
            gateway.lost.append(key)
        elif each.state is TryState.QUEUED:
            gateway.unqueued.append(key)
        actions += core_requests.abort(tables, each, sentence, now)
    return actions


def tick(tables: Tables, now: float) -> list[Action]:
    """Judges silence."""
    gap, tables.last_tick = now - tables.last_tick, now
    peers: list[Worker | Gateway] = [*tables.workers.values(), *tables.gateways.values()]
    if gap > LATE_TICK_SECONDS:
        for peer in peers:
            peer.last_seen = min(now, peer.last_seen + gap)
    timeout = tables.settings.worker_timeout
    actions: list[Action] = []
    for peer in peers:
        silent = now - peer.last_seen
        if silent > timeout:
            actions += gone(tables, peer.identity, f"silent for {silent:.1f} s", now)
        elif silent > timeout / 2 and isinstance(peer, Worker):
            actions += _suspect(tables, peer, silent, now)
    tables.forget_gone()
    return actions


def _suspect(tables: Tables, worker: Worker, silent: float, now: float) -> list[Action]:
    if worker.state not in (WorkerState.READY, WorkerState.JOINING):
        return []
    worker.before_suspect = worker.state
    worker.move(WorkerState.SUSPECT, f"silent for {silent:.1f} s", now)
    tables.workers_changed = True
    sentence = f"{worker.role} {worker.name} is silent for {silent:.1f} s and gets nothing new"
    return [Note("warning", "worker.suspect", sentence)]
