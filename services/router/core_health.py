"""Which workers are trusted. Called by `core.py` and `core_peers.py` only.

A worker is doubted when it is silent or when its engine does not step (`liveness.py`); it then gets
nothing new. If that goes on it is ejected: what it holds is given up, so that clients need not wait
for it, but only of a part of its pool, for when many look dead at once, the fault is likelier ours.
A router that is not alone aborts nothing that it merely lost sight of: its gateway may have gone to
the other router, for which it still runs. A closed connection is no doubt but knowledge, and knows
no such limit. Trust returns after a time without fault, longer for a worker that flaps. When the
router itself was stopped, the silence that it then finds proves nothing, and is forgiven.
"""

from __future__ import annotations

from common.messages import Abort, Role
from services.router import core_gateways, core_requests
from services.router.events import Action, Note, Send
from services.router.liveness import hopeless, may_eject, proof_needed, stalled
from services.router.records import Gateway, Key, Worker
from services.router.state import WorkerState
from services.router.tables import Tables

ORPHANS_MAX = 4_096


def seen(tables: Tables, peer: Worker | Gateway, now: float) -> list[Action]:
    """Any traffic is a sign of life; a suspect that has shown enough of it is one no more."""
    silent, peer.last_seen = now - peer.last_seen, now
    if not isinstance(peer, Worker) or peer.state is not WorkerState.SUSPECT:
        return []
    if peer.sound_since is None or silent > _suspect_after(tables):
        peer.sound_since = now
    if stalled(tables.settings.liveness, peer.load) or not proven(tables, peer, now):
        return []
    peer.move(peer.before_suspect, "", now)
    tables.workers_changed = tables.freed = True
    return [Note("info", "worker.trusted", f"{peer.role} {peer.name} is trusted again")]


def proven(tables: Tables, worker: Worker, now: float) -> bool:
    """Whether it has been without fault for long enough; at once when it was never doubted."""
    needed = proof_needed(tables.settings.liveness, worker.flaps)
    if not needed:
        return True
    if worker.sound_since is None or now - worker.sound_since < needed:
        worker.reason = f"must be sound for {needed:g} s, doubted {worker.flaps} times of late"
        return False
    return True


def doubt(tables: Tables, worker: Worker, now: float) -> None:
    """Counts; what follows is the caller's."""
    if now - worker.flapped_at > tables.settings.liveness.flap_window_seconds:
        worker.flaps = 0
    worker.flaps += 1
    worker.flapped_at, worker.sound_since = now, None


def watch_engine(tables: Tables, worker: Worker, now: float) -> list[Action]:
    """After a Beat: what its daemon says of its engine's steps."""
    liveness, load = tables.settings.liveness, worker.load
    if not stalled(liveness, load):
        return []
    reason = f"its engine made no step for {load.step_age_ms / 1000:.1f} s"
    actions = _suspect(tables, worker, reason, now)
    worker.sound_since = None
    if hopeless(liveness, load):
        actions += _eject(tables, worker, reason, now)
    return actions


def left(tables: Tables, gateway: Gateway, identity: str, now: float) -> list[Action]:
    """A gateway hears nothing of a D whose streams it had. That alone may be the gateway's fault;
    with a Beat missing here too, it is doubted sooner than by silence alone."""
    worker = tables.workers.get(identity)
    if worker is None or now - worker.last_seen <= _suspect_after(tables) / 2:
        return []
    reason = f"silent for {now - worker.last_seen:.1f} s, and {gateway.name} hears no tokens of it"
    return _suspect(tables, worker, reason, now)


def tick(tables: Tables, now: float) -> list[Action]:
    """Judges silence."""
    gap, tables.last_tick = now - tables.last_tick, now
    if gap > tables.settings.liveness.late_tick_seconds:
        peers: list[Worker | Gateway] = [*tables.workers.values(), *tables.gateways.values()]
        for peer in peers:
            peer.last_seen = min(now, peer.last_seen + gap)
    actions = core_gateways.tick(tables, now)
    for worker in tables.workers.values():
        silent = now - worker.last_seen
        if silent <= _suspect_after(tables):
            continue
        reason = f"silent for {silent:.1f} s"
        actions += _suspect(tables, worker, reason, now)
        if silent > tables.settings.worker_timeout:
            actions += _eject(tables, worker, reason, now)
    tables.forget_gone()
    return actions


def give_up(tables: Tables, worker: Worker, sentence: str, now: float) -> list[Action]:
    """What it holds is lost to the router; it is told so when it is back (`orphans`)."""
    lost = list(worker.held)
    adopted = {key: tables.tries[key].adopted for key in lost}
    actions: list[Action] = []
    for key in lost:
        each = tables.tries[key]
        if worker.role is Role.DECODE:
            actions += core_requests.fail(tables, each, sentence, now)
        else:
            core_requests.prefill_lost(tables, each, sentence)
    mine = [key for key in lost if tables.settings.alone and not adopted[key]]
    worker.orphans = (worker.orphans + mine)[-ORPHANS_MAX:]
    worker.unconfirmed = {}
    worker.foreign_tokens = worker.foreign_requests = 0
    return actions


def blame(tables: Tables, worker: Worker, now: float) -> list[Action]:
    """Its process is gone: what D ran, or P was computing first, may be what killed it."""
    keys = list(worker.held) if worker.role is Role.DECODE else list(worker.computing)[:1]
    actions: list[Action] = []
    for key in keys:
        each = tables.tries[key]
        barred = tables.poison.died(
            (worker.role, each.request_id), each.digest, worker.identity, now
        )
        if barred is not None:
            sentence = core_requests.quarantined(barred)
            fields: dict[str, object] = {"request_id": each.request_id}
            actions.append(Note("warning", "prompt.quarantined", sentence, fields))
    return actions


def aborts(worker: Worker, keys: list[Key], reason: str) -> list[Action]:
    return [
        Send(worker.identity, Abort(request_id=key[0], attempt=key[1], reason=reason))
        for key in keys
    ]


def _suspect_after(tables: Tables) -> float:
    return tables.settings.worker_timeout * tables.settings.liveness.suspect_share


def _suspect(tables: Tables, worker: Worker, reason: str, now: float) -> list[Action]:
    if worker.state not in (WorkerState.READY, WorkerState.JOINING):
        return []
    worker.before_suspect = worker.state
    doubt(tables, worker, now)
    worker.move(WorkerState.SUSPECT, reason, now)
    tables.workers_changed = True
    sentence = f"{worker.role} {worker.name} gets nothing new: {reason}"
    return [Note("warning", "worker.suspect", sentence)]


def _eject(tables: Tables, worker: Worker, reason: str, now: float) -> list[Action]:
    """A hung daemon hears its Aborts when it wakes, a daemon with a hung engine at once."""
    if worker.away or not _pool_allows(tables, worker):
        return []
    sentence = f"{worker.role} worker {worker.name} was ejected: {reason}"
    note = Note("warning", "worker.ejected", f"{sentence}; it held {len(worker.held)} requests")
    alone = tables.settings.alone
    held = [key for key in worker.held if alone and not tables.tries[key].adopted]
    actions = [note, *give_up(tables, worker, sentence, now)]
    worker.move(WorkerState.EJECTED, reason, now)
    tables.workers_changed = True
    return actions + aborts(worker, held, "given up: " + reason)


def _pool_allows(tables: Tables, worker: Worker) -> bool:
    pool = [w for w in tables.workers.values() if w.role is worker.role and w.connected]
    ejected = sum(w.state is WorkerState.EJECTED for w in pool)
    return may_eject(tables.settings.liveness, len(pool), ejected)
