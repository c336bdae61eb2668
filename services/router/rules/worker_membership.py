"""Who is a member of the fleet: Hello, Beat, Leaving, loss, return.

A peer is one incarnation of a daemon. A newer incarnation of the same name fences the older one for
good. A worker that was merely out of reach returns by a Hello, or by a Beat if it did not notice; a
gateway returns by any message. A Hello in another role of the same incarnation tells that the
worker has changed its role: nothing that was placed on it before holds any more.
What was given up meanwhile is then aborted on a worker, and sent as `Failed` to a gateway. A worker
gets work only after a Beat has shown its load. Suspicion and trust are in `worker_trust.py`.
"""

from __future__ import annotations

from collections.abc import Iterator

from common.blocks import streams_can_move
from common.errors import Code
from common.messages import (
    WIRE_VERSION,
    Beat,
    Hello,
    Introduce,
    Leaving,
    PrefixDelta,
    Refused,
    Role,
    ToRouter,
    Welcome,
)
from services.router.events import Action, Note, Received, Send
from services.router.fleet.liveness import stalled
from services.router.fleet.pairing import may_give
from services.router.fleet.pools import layout_of
from services.router.fleet.roles import WITH_ENGINE
from services.router.records.states import WorkerEvent, WorkerState
from services.router.records.worker import UNKNOWN, Worker
from services.router.rules import (
    attempt_lifecycle,
    degradation_reports,
    gateway_membership,
    health_verdicts,
    hello_check,
    moves,
    operator,
    worker_trust,
)
from services.router.rules.hello_check import NAME_CHARS_MAX, home_of
from services.router.settings import Settings
from services.router.tables import RefusedWorker, SharedTables, Tables

IDENTITY_LOG_SECONDS = 10.0
WITH_MODEL = (*WITH_ENGINE, Role.POOL)
SENTENCE_CHARS_MAX = 512
TAKERS_MAX = 8
"""Decode workers that a new one connects with ahead of any move."""


def on_hello(shared: SharedTables, event: Received, message: Hello, now: float) -> list[Action]:
    peer, host = event.peer, event.speaker.host if event.speaker is not None else ""
    impersonation = hello_check.identity_refusal(shared, message, event.speaker)
    if impersonation:
        return _refuse_identity(shared, peer, host, impersonation, now)
    refusal = hello_check.refusal(shared, peer, message)
    if refusal is not None:
        return _refuse(shared, peer, message, *refusal, now)
    actions = _fence_older(shared, peer, message, now)
    shared.names[home_of(message)] = peer
    shared.refused.pop((message.role, message.name[:NAME_CHARS_MAX]), None)
    actions.append(_welcome(shared.settings, peer))
    if message.role is Role.GATEWAY:
        actions += gateway_membership.on_hello(shared, peer, message, now)
        shared.gateways[peer].host = host
        return actions
    tables = shared.models[message.model]
    actions += _welcome_worker(tables, peer, message, now)
    tables.workers[peer].host = host
    return actions


def _refuse(
    shared: SharedTables, peer: str, message: Hello, code: Code, sentence: str, now: float
) -> list[Action]:
    """A worker that is refused for what it serves is remembered, so that an operator sees it."""
    shared.counts.drop("refused hello")
    if message.role in WITH_MODEL and hello_check.model_refusal(shared, message):
        refused = RefusedWorker(
            message.role,
            message.name[:NAME_CHARS_MAX],
            message.incarnation[:NAME_CHARS_MAX],
            message.model[:NAME_CHARS_MAX],
            message.fingerprint[:NAME_CHARS_MAX],
            sentence[:SENTENCE_CHARS_MAX],
            now,
        )
        shared.refuse_worker(refused)
    return [
        Send(peer, Refused(code=code, message=sentence)),
        Note("warning", "peer.refused", sentence, {"peer": peer}),
    ]


def _refuse_identity(
    shared: SharedTables, peer: str, host: str, sentence: str, now: float
) -> list[Action]:
    """Every attempt is counted, and one of each host is logged in `IDENTITY_LOG_SECONDS`."""
    shared.counts.drop("identity refused")
    actions: list[Action] = [Send(peer, Refused(code=Code.INVALID_REQUEST, message=sentence))]
    if now - shared.identity_logged.get(host, -IDENTITY_LOG_SECONDS) >= IDENTITY_LOG_SECONDS:
        shared.identity_logged[host] = now
        fields: dict[str, object] = {"peer": peer, "host": host}
        actions.append(Note("warning", "identity.refused", sentence, fields))
    return actions


def _welcome(settings: Settings, peer: str) -> Action:
    """The peer answers with what it holds."""
    welcome = Welcome(
        wire_version=WIRE_VERSION, name=settings.name, incarnation=settings.incarnation
    )
    return Send(peer, welcome)


def _fence_older(shared: SharedTables, peer: str, message: Hello, now: float) -> list[Action]:
    older = shared.names.get(home_of(message))
    if older is None or older == peer:
        return []
    reason = "a new incarnation took its place"
    actions = on_peer_gone(shared, older, reason, now)
    if older in shared.gateways:
        actions += gateway_membership.give_up(shared, shared.gateways[older], reason, now)
    if older in shared.owners:
        shared.owners[older].drop_worker(older)
    shared.fence(older, peer)
    return actions


def reject_fenced(shared: SharedTables, peer: str, message: ToRouter) -> list[Action]:
    """A fenced worker is still running. The router refuses its next Beat so that it exits, and
    ignores everything else from a peer without a row."""
    shared.counts.drop("before hello")
    by = shared.fenced.get(peer)
    if by is None or peer in shared.gateways or not isinstance(message, Beat):
        return []
    sentence = f"{peer} was replaced by {by}; two processes use one name"
    return [Send(peer, Refused(code=Code.WORKER_LOST, message=sentence))]


def _welcome_worker(tables: Tables, peer: str, message: Hello, now: float) -> list[Action]:
    worker = tables.workers.get(peer)
    if worker is not None and worker.role is not message.role:
        return _change_role(tables, worker, message, now)
    if worker is not None:
        worker.role_state.epoch = message.role_epoch
    if worker is not None and not worker.fingerprint and message.capacity is not None:
        worker.learn_layout(message, message.capacity)
    if worker is not None and not worker.away:
        worker.last_seen, worker.unconfirmed = now, dict.fromkeys(worker.held)
        return _introduce(tables, worker, now) if worker.role is Role.POOL and worker.ready else []
    if worker is not None:
        return _return_worker(worker, now)
    capacity, grant = message.capacity or UNKNOWN, tables.settings.kv_grant_max
    worker = Worker.from_hello(peer, message, capacity, grant, tables.changes, now)
    worker.returned = peer in tables.shared.fenced.values()
    tables.add_worker(worker)
    what = "blocks" if message.role is Role.POOL else "work"
    sentence = f"{message.role} {message.name} joined; it gets {what} after its first beat"
    return [Note("info", "worker.joining", sentence, {"fingerprint": message.fingerprint})]


def _change_role(tables: Tables, before: Worker, message: Hello, now: float) -> list[Action]:
    """The worker takes another role, and its row with it. It held nothing when it did: what the
    router still has there was sent too late, and goes on elsewhere. What is known of its prefix
    cache and its store stays, because they do."""
    late, reason = [*before.orphans, *before.held], f"{before.name} is a {message.role} worker now"
    actions = worker_trust.give_up_held(tables, before, reason, now)
    actions += worker_trust.abort_messages(before, late, reason)
    tables.retire_row(before, reason, now)
    capacity, grant = message.capacity or UNKNOWN, tables.settings.kv_grant_max
    worker = Worker.from_hello(before.identity, message, capacity, grant, tables.changes, now)
    worker.flaps, worker.flapped_at = before.flaps, before.flapped_at
    worker.faultless_since, worker.introduced = before.faultless_since, before.introduced
    worker.set_excluded(before.excluded)
    tables.add_worker(worker)
    tables.balance.record_change(now)
    sentence = f"{before.role} {before.name} has become a {message.role} worker"
    return [*actions, Note("info", "role.changed", sentence, {"epoch": message.role_epoch})]


def _return_worker(worker: Worker, now: float) -> list[Action]:
    worker.apply(WorkerEvent.REJOINED, "came back", now)
    worker.last_seen, worker.idle_since, worker.faultless_since = now, None, now
    reason = "given up while the worker was out of reach"
    aborts = worker_trust.abort_messages(worker, worker.orphans, reason)
    sentence = f"{worker.name} is back; {len(aborts)} requests given up meanwhile are aborted"
    return [*aborts, Note("info", "worker.returned", sentence)]


def _introduce(tables: Tables, newcomer: Worker, now: float) -> list[Action]:
    """Pairs that may hand KV over connect now, so that no request has to wait for it. A mixed
    worker is sent no KV of prompts."""
    introductions: list[Action] = []
    for other in tables.workers.values():
        if not other.ready:
            continue
        for p, d in ((newcomer, other), (other, newcomer)):
            if p.role.prefills and d.role is Role.DECODE and may_give(p, d):
                introductions.append(Send(d.identity, _introduction(p)))
    layouts, stores = _lay_out(tables, newcomer), _introduce_stores(tables, newcomer)
    return [*layouts, *introductions, *stores, *_introduce_takers(tables, newcomer, now)]


def _lay_out(tables: Tables, newcomer: Worker) -> list[Action]:
    """Pools that do not know yet what to hold are told, now that this worker or pool is ready."""
    pools = [p for p in tables.pools.values() if p.connected and not p.fingerprint]
    asking = [newcomer] if newcomer.role is Role.POOL else pools
    layout = layout_of(tables.workers.values()) if pools else None
    if layout is None:
        return []
    return [Send(pool.identity, layout) for pool in asking if pool in pools]


def _introduce_stores(tables: Tables, newcomer: Worker) -> Iterator[Action]:
    """Prefill workers that may pull from each other's stores, and pools and all workers."""
    for other in tables.workers.values() if newcomer.capacity.pull_blocks else ():
        roles = {newcomer.role, other.role}
        prefills = newcomer.role.prefills and other.role.prefills
        pairs = prefills or (Role.POOL in roles and roles != {Role.POOL})
        alike = pairs and other.fingerprint == newcomer.fingerprint
        if other is not newcomer and alike and other.ready and other.capacity.pull_blocks:
            yield Send(other.identity, Introduce(kv_address=newcomer.kv_address))
            yield Send(newcomer.identity, Introduce(kv_address=other.kv_address))


def _introduce_takers(tables: Tables, newcomer: Worker, now: float) -> Iterator[Action]:
    """Decode workers that streams may move between. In a large fleet the others connect when the
    first stream is ordered to move."""
    if not newcomer.role.decodes or not streams_can_move(newcomer.capacity.kv_groups):
        return
    others = [
        worker
        for worker in tables.workers.values()
        if worker.role.decodes and worker.ready and worker is not newcomer
        if may_give(worker, newcomer)
    ]
    for other in others[-TAKERS_MAX:]:
        yield from moves.introduce(other, newcomer, now)
        yield from moves.introduce(newcomer, other, now)


def _introduction(prefill: Worker) -> Introduce:
    return Introduce(kv_address=prefill.kv_address, prefill=prefill.name)


def on_beat(tables: Tables, worker: Worker, message: Beat, now: float) -> list[Action]:
    if worker.away:
        if message.load is not None and stalled(tables.settings.liveness, message.load):
            return []
        return [_welcome(tables.settings, worker.identity), *_return_worker(worker, now)]
    if message.load is None:
        return []
    actions = operator.confirm_drain(worker, message) + operator.confirm_role(worker, message)
    actions += health_verdicts.update_verdict(tables, worker, message)
    if worker.set_warm(message.warm, now) and worker.ready:
        actions += _introduce(tables, worker, now)
    degradation_reports.record_beat(tables, worker, message, now)
    actions += _note_store(worker, message)
    _note_checkpoints(tables, worker, message)
    worker.update_kv_status(message, now)
    worker.update_load(message.load, now)
    worker.update_adapters(message.adapters)
    worker.abandoned.clear()
    actions += worker_trust.check_engine(tables, worker, now)
    if worker.state is WorkerState.JOINING and worker_trust.check_probation(tables, worker, now):
        worker.orphans.clear()
        worker.apply(WorkerEvent.CLEARED, "", now)
        sentence = f"{worker.role} {worker.name} is ready"
        actions.append(Note("info", "worker.ready", sentence, {"pid": worker.pid}))
        actions += _introduce(tables, worker, now)
        actions += operator.repeat_adapter_orders(tables, worker)
    if worker.role.decodes and not worker.away:
        actions += _end_unheld(tables, worker, now)
    return actions


def on_prefix_delta(tables: Tables, worker: Worker, message: PrefixDelta) -> list[Action]:
    """It reports what its engine's prefix cache, or a store, gained and lost."""
    tables.placement_memory.learn_prefixes(worker.identity, worker.capacity, message)
    return []


def _note_store(worker: Worker, message: Beat) -> list[Action]:
    """Tells once that the disk of a worker's store has failed."""
    after, before = message.kv_counts, worker.kv_counts
    if after is None or not after.store_disk_off or (before is not None and before.store_disk_off):
        return []
    sentence = f"{worker.name} keeps no KV on disk until it restarts; its log says why"
    return [Note("warning", "store.disk_off", sentence, {"worker": worker.name})]


def _note_checkpoints(tables: Tables, worker: Worker, message: Beat) -> None:
    """How far the copies of its streams' blocks are."""
    for checkpoint in message.kv_checkpoints:
        attempt = tables.attempts.get((checkpoint.request_id, checkpoint.attempt))
        if attempt is not None and attempt.decode == worker.identity:
            attempt.checkpoint = checkpoint


def _end_unheld(tables: Tables, worker: Worker, now: float) -> list[Action]:
    """An engine that was without work for `idle_seconds` holds nothing that it was given before. An
    `Ended` was lost with a connection, and without this its promises would never end."""
    since, limit = worker.idle_since, tables.settings.idle_seconds
    if not worker.held or since is None or now - since < limit:
        return []
    actions: list[Action] = []
    for key in list(worker.held):
        attempt = tables.attempts[key]
        if attempt.decode != worker.identity:  # KV that waits for its D is no work
            continue
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


def on_peer_gone(shared: SharedTables, peer: str, reason: str, now: float) -> list[Action]:
    """The connection to a peer is closed. Idempotent."""
    tables = shared.owners.get(peer)
    if tables is not None:
        return _lose_worker(tables, tables.workers[peer], reason, now)
    gateway = shared.gateways.get(peer)
    return [] if gateway is None else gateway_membership.lose(shared, gateway, reason, now)


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
    if held or worker.state is not WorkerState.DRAINING:
        worker_trust.record_crash_suspects(tables, worker, now)
    actions = [note, *worker_trust.give_up_held(tables, worker, sentence, now)]
    tables.placement_memory.forget_prefixes(worker.identity)
    tables.placement_memory.forget_stored(worker.identity)
    worker.apply(WorkerEvent.LOST, reason, now)
    return actions
