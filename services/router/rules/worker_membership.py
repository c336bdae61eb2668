"""Who is a member of the fleet: Hello, Beat, Leaving, loss, return.

A peer is one incarnation of a daemon. A newer incarnation of the same name fences the older one for
good. A worker that was merely out of reach returns by a Hello, or by a Beat if it did not notice; a
gateway returns by any message.
What was given up meanwhile is then aborted on a worker, and sent as `Failed` to a gateway. A worker
gets work only after a Beat has shown its load. Suspicion and trust are in `worker_trust.py`.
"""

from __future__ import annotations

from collections.abc import Iterator

from common.errors import Code
from common.messages import (
    WIRE_VERSION,
    Beat,
    Hello,
    Introduce,
    Leaving,
    Refused,
    Role,
    ToRouter,
    Welcome,
)
from services.router.events import Action, Note, Received, Send
from services.router.fleet.liveness import stalled
from services.router.records.states import WorkerEvent, WorkerState
from services.router.records.worker import Worker
from services.router.rules import (
    attempt_lifecycle,
    degradation_reports,
    gateway_membership,
    health_verdicts,
    hello_check,
    operator,
    worker_trust,
)
from services.router.tables import Tables

IDENTITY_LOG_SECONDS = 10.0


def on_hello(tables: Tables, event: Received, message: Hello, now: float) -> list[Action]:
    peer, host = event.peer, event.speaker.host if event.speaker is not None else ""
    impersonation = hello_check.identity_refusal(tables, message, event.speaker)
    if impersonation:
        return _refuse_identity(tables, peer, host, impersonation, now)
    refusal = hello_check.refusal(tables, peer, message)
    if refusal is not None:
        code, sentence = refusal
        tables.counts.drop("refused hello")
        return [
            Send(peer, Refused(code=code, message=sentence)),
            Note("warning", "peer.refused", sentence, {"peer": peer}),
        ]
    actions = _fence_older(tables, peer, message, now)
    tables.names[message.role, message.name] = peer
    actions.append(_welcome(tables, peer))
    if message.role is Role.GATEWAY:
        actions += gateway_membership.on_hello(tables, peer, message, now)
        tables.gateways[peer].host = host
        return actions
    actions += _welcome_worker(tables, peer, message, now)
    tables.workers[peer].host = host
    return actions


def _refuse_identity(
    tables: Tables, peer: str, host: str, sentence: str, now: float
) -> list[Action]:
    """Every attempt is counted, and one of each host is logged in `IDENTITY_LOG_SECONDS`."""
    tables.counts.drop("identity refused")
    actions: list[Action] = [Send(peer, Refused(code=Code.INVALID_REQUEST, message=sentence))]
    if now - tables.identity_logged.get(host, -IDENTITY_LOG_SECONDS) >= IDENTITY_LOG_SECONDS:
        tables.identity_logged[host] = now
        fields: dict[str, object] = {"peer": peer, "host": host}
        actions.append(Note("warning", "identity.refused", sentence, fields))
    return actions


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
    actions = on_peer_gone(tables, older, reason, now)
    if older in tables.gateways:
        actions += gateway_membership.give_up(tables, tables.gateways[older], reason, now)
    tables.workers.pop(older, None)
    tables.fence(older, peer)
    return actions


def reject_fenced(tables: Tables, peer: str, message: ToRouter) -> list[Action]:
    """A fenced worker is still running. The router refuses its next Beat so that it exits, and
    ignores everything else from a peer without a row."""
    tables.counts.drop("before hello")
    by = tables.fenced.get(peer)
    if by is None or peer in tables.gateways or not isinstance(message, Beat):
        return []
    sentence = f"{peer} was replaced by {by}; two processes use one name"
    return [Send(peer, Refused(code=Code.WORKER_LOST, message=sentence))]


def _welcome_worker(tables: Tables, peer: str, message: Hello, now: float) -> list[Action]:
    worker = tables.workers.get(peer)
    if worker is not None and not worker.away:
        worker.last_seen, worker.unconfirmed = now, dict.fromkeys(worker.held)
        return []
    if worker is not None:
        return _return_worker(worker, now)
    assert message.capacity is not None
    grant = tables.settings.kv_grant_max
    worker = Worker.from_hello(peer, message, message.capacity, grant, tables.changes, now)
    worker.returned = peer in tables.fenced.values()
    tables.workers[peer] = worker
    sentence = f"{message.role} {message.name} joined; it gets work after its first beat"
    return [Note("info", "worker.joining", sentence, {"fingerprint": message.fingerprint})]


def _return_worker(worker: Worker, now: float) -> list[Action]:
    worker.apply(WorkerEvent.REJOINED, "came back", now)
    worker.last_seen, worker.idle_since, worker.faultless_since = now, None, now
    reason = "given up while the worker was out of reach"
    aborts = worker_trust.abort_messages(worker, worker.orphans, reason)
    sentence = f"{worker.name} is back; {len(aborts)} requests given up meanwhile are aborted"
    return [*aborts, Note("info", "worker.returned", sentence)]


def _introduce(tables: Tables, newcomer: Worker) -> list[Action]:
    """Pairs that may hand KV over connect now, so that no request has to wait for it."""
    others = [
        worker
        for worker in tables.workers.values()
        if worker.role is not newcomer.role
        and worker.ready
        and worker.fingerprint == newcomer.fingerprint
    ]
    if newcomer.role is Role.DECODE:
        return [Send(newcomer.identity, _introduction(prefill)) for prefill in others]
    introduction = _introduction(newcomer)
    actions: list[Action] = [Send(decode.identity, introduction) for decode in others]
    return [*actions, *_introduce_stores(tables, newcomer)]


def _introduce_stores(tables: Tables, newcomer: Worker) -> Iterator[Action]:
    """Prefill workers that may pull from each other's stores."""
    for other in tables.workers.values() if newcomer.capacity.pull_blocks else ():
        alike = other.role is newcomer.role and other.fingerprint == newcomer.fingerprint
        if other is not newcomer and alike and other.ready and other.capacity.pull_blocks:
            yield Send(other.identity, Introduce(kv_address=newcomer.kv_address))
            yield Send(newcomer.identity, Introduce(kv_address=other.kv_address))


def _introduction(prefill: Worker) -> Introduce:
    return Introduce(kv_address=prefill.kv_address, prefill=prefill.name)


def on_beat(tables: Tables, worker: Worker, message: Beat, now: float) -> list[Action]:
    if worker.away:
        if message.load is not None and stalled(tables.settings.liveness, message.load):
            return []
        return [_welcome(tables, worker.identity), *_return_worker(worker, now)]
    if message.load is None:
        return []
    actions = operator.confirm_drain(worker, message)
    actions += health_verdicts.update_verdict(tables, worker, message)
    degradation_reports.record_beat(tables, worker, message, now)
    worker.update_kv_status(message, now)
    worker.update_load(message.load, now)
    worker.abandoned.clear()
    actions += worker_trust.check_engine(tables, worker, now)
    if worker.state is WorkerState.JOINING and worker_trust.check_probation(tables, worker, now):
        worker.orphans.clear()
        worker.apply(WorkerEvent.CLEARED, "", now)
        sentence = f"{worker.role} {worker.name} is ready"
        actions.append(Note("info", "worker.ready", sentence, {"pid": worker.pid}))
        actions += _introduce(tables, worker)
    if worker.role is Role.DECODE and not worker.away:
        actions += _end_unheld(tables, worker, now)
    return actions


def _end_unheld(tables: Tables, worker: Worker, now: float) -> list[Action]:
    """An engine that was without work for `idle_seconds` holds nothing that it was given before. An
    `Ended` was lost with a connection, and without this its promises would never end."""
    since, limit = worker.idle_since, tables.settings.idle_seconds
    if not worker.held or since is None or now - since < limit:
        return []
    actions: list[Action] = []
    for key in list(worker.held):
        attempt = tables.attempts[key]
        if attempt.placed is not None and now - attempt.placed >= limit:
            sentence = f"{worker.name} no longer holds the request and its end was not reported"
            actions += attempt_lifecycle.fail(tables, attempt, sentence, now)
            actions.append(attempt_lifecycle.abort_message(worker.identity, key, "given up"))
    return actions


def on_leaving(worker: Worker, message: Leaving, now: float) -> list[Action]:
    if worker.away or worker.state is WorkerState.DRAINING:
        return []
    worker.apply(WorkerEvent.LEAVING, message.reason, now)
    sentence = f"{worker.role} {worker.name} drains {len(worker.held)} requests: {message.reason}"
    return [Note("info", "worker.draining", sentence)]


def on_peer_gone(tables: Tables, peer: str, reason: str, now: float) -> list[Action]:
    """The connection to a peer is closed. Idempotent."""
    worker = tables.workers.get(peer)
    if worker is not None:
        return _lose_worker(tables, worker, reason, now)
    gateway = tables.gateways.get(peer)
    return [] if gateway is None else gateway_membership.lose(tables, gateway, reason, now)


def _lose_worker(tables: Tables, worker: Worker, reason: str, now: float) -> list[Action]:
    if worker.state is WorkerState.GONE:
        return []
    held = len(worker.held)
    sentence = f"{worker.role} worker {worker.name} was lost: {reason}"
    note: Action = Note("warning", "worker.lost", f"{sentence}; it held {held} requests")
    worker.left_drained = worker.state is WorkerState.DRAINING and not held
    if worker.left_drained:
        note = Note("info", "worker.left", f"{worker.role} worker {worker.name} drained and left")
    if worker.state in (WorkerState.READY, WorkerState.JOINING):
        worker_trust.record_flap(tables, worker, now)
    actions = [note]
    if held or worker.state is not WorkerState.DRAINING:
        actions += worker_trust.record_crash_suspects(tables, worker, now)
    actions += worker_trust.give_up_held(tables, worker, sentence, now)
    tables.placement_memory.prefixes.clear(worker.identity)
    tables.placement_memory.stored.clear(worker.identity)
    worker.apply(WorkerEvent.LOST, reason, now)
    return actions
