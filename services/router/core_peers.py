"""Who is there: Hello, Beat, Leaving, loss, silence, return. Called by `core.py` only.

A peer is one incarnation. A newer incarnation of the same name fences the older one for good. One
that was merely out of reach comes back by Hello or by a Beat (its process never noticed); what was
given up meanwhile is then aborted on a worker, and told as `Failed` to a gateway. A worker gets
work only after a Beat has shown its load. Who is doubted, and trusted again, is in `core_health`.
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
from services.router import (
    core_degradation,
    core_gateways,
    core_health,
    core_operator,
    core_opinions,
    core_requests,
    hello_check,
)
from services.router.events import Action, Note, Send
from services.router.liveness import stalled
from services.router.records import Gateway, Worker
from services.router.state import WorkerState
from services.router.tables import Tables


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
    actions.append(_welcome(tables, peer))
    if message.role is Role.GATEWAY:
        return actions + core_gateways.hello(tables, peer, message, now)
    return actions + _hello_worker(tables, peer, message, now)


def _welcome(tables: Tables, peer: str) -> Action:
    """The peer answers with what it holds."""
    settings = tables.settings
    welcome = Welcome(
        wire_version=WIRE_VERSION, name=settings.name, incarnation=settings.incarnation
    )
    return Send(peer, welcome)


def _fence_older(tables: Tables, peer: str, message: Hello, now: float) -> list[Action]:
    older = tables.names.get((message.role, message.name))
    if older is None or older == peer:
        return []
    reason = "a new incarnation took its place"
    actions = gone(tables, older, reason, now)
    if older in tables.gateways:
        actions += core_gateways.give_up(tables, tables.gateways[older], reason, now)
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


def _hello_worker(tables: Tables, peer: str, message: Hello, now: float) -> list[Action]:
    worker = tables.workers.get(peer)
    if worker is not None and not worker.away:
        worker.last_seen, worker.unconfirmed = now, dict.fromkeys(worker.held)
        return []
    if worker is not None:
        return _return_worker(tables, worker, now)
    assert message.capacity is not None
    grant, changed = tables.settings.kv_grant_max, tables.board.changed[message.role]
    tables.workers[peer] = Worker.of(peer, message, message.capacity, grant, changed, now)
    tables.workers[peer].returned = peer in tables.fenced.values()
    tables.workers_changed = True
    sentence = f"{message.role} {message.name} says hello; it gets work after its first beat"
    return [Note("info", "worker.joining", sentence, {"fingerprint": message.fingerprint})]


def _return_worker(tables: Tables, worker: Worker, now: float) -> list[Action]:
    worker.move(WorkerState.JOINING, "came back", now)
    worker.last_seen, worker.empty_since, worker.sound_since = now, None, now
    tables.workers_changed = True
    reason = "given up while the worker was out of reach"
    aborts = core_health.aborts(worker, worker.orphans, reason)
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
        return [Send(newcomer.identity, _introduction(p)) for p in others]
    introduction = _introduction(newcomer)
    return [Send(decode.identity, introduction) for decode in others]


def _introduction(prefill: Worker) -> Introduce:
    return Introduce(kv_address=prefill.kv_address, prefill=prefill.name)


def beat(tables: Tables, peer: Worker | Gateway, message: Beat, now: float) -> list[Action]:
    if isinstance(peer, Gateway):
        return core_gateways.returned(peer, now) if peer.gone else []
    if peer.away:
        hung = message.load is not None and stalled(tables.settings.liveness, message.load)
        if hung:
            return []
        return [_welcome(tables, peer.identity), *_return_worker(tables, peer, now)]
    if message.load is None:
        return []
    actions = core_operator.beat(tables, peer, message) + core_opinions.beat(tables, peer, message)
    core_degradation.beat(tables, peer, message, now)
    peer.told_kv(message, now)
    tables.freed |= peer.reported(message.load, now)
    actions += core_health.watch_engine(tables, peer, now)
    if peer.state is WorkerState.JOINING and core_health.proven(tables, peer, now):
        peer.orphans.clear()
        peer.move(WorkerState.READY, "", now)
        tables.workers_changed = tables.freed = True
        sentence = f"{peer.role} {peer.name} is ready"
        actions.append(Note("info", "worker.ready", sentence, {"pid": peer.pid}))
        actions += _introduce(tables, peer)
    if peer.role is Role.DECODE and not peer.away:
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
    if peer.away or peer.state is WorkerState.DRAINING:
        return []
    peer.move(WorkerState.DRAINING, message.reason, now)
    tables.workers_changed = True
    sentence = f"{peer.role} {peer.name} drains {len(peer.held)} requests: {message.reason}"
    return [Note("info", "worker.draining", sentence)]


def gone(tables: Tables, peer: str, reason: str, now: float) -> list[Action]:
    """Idempotent."""
    worker = tables.workers.get(peer)
    if worker is not None:
        return _worker_gone(tables, worker, reason, now)
    gateway = tables.gateways.get(peer)
    return [] if gateway is None else core_gateways.gone(tables, gateway, reason, now)


def _worker_gone(tables: Tables, worker: Worker, reason: str, now: float) -> list[Action]:
    if worker.state is WorkerState.GONE:
        return []
    held = len(worker.held)
    sentence = f"{worker.role} worker {worker.name} was lost: {reason}"
    note: Action = Note("warning", "worker.lost", f"{sentence}; it held {held} requests")
    worker.left = worker.state is WorkerState.DRAINING and not held
    if worker.left:
        note = Note("info", "worker.left", f"{worker.role} worker {worker.name} drained and left")
    if worker.state in (WorkerState.READY, WorkerState.JOINING):
        core_health.doubt(tables, worker, now)
    actions = [note]
    if worker.state is not WorkerState.DRAINING:
        actions += core_health.blame(tables, worker, now)
    actions += core_health.give_up(tables, worker, sentence, now)
    tables.placing.prefixes.clear(worker.identity)
    worker.move(WorkerState.GONE, reason, now)
    tables.workers_changed = True
    return actions
