"""Which workers are trusted.

A worker is suspected when it is silent or when its engine makes no step (`fleet/liveness.py`). It
then gets nothing new. If the fault lasts, the worker is ejected: what it holds is given up, so that
clients need not wait for it. Only a part of a pool is ejected, because when many workers look dead
at once, the fault is likelier ours.

A closed connection needs no suspicion and knows no such limit. A router beside another one aborts
nothing that it merely lost sight of: the gateway may have gone to the other router, for which the
request still runs.

Trust returns after a probation without a fault, which is longer for a worker that flaps. If the
router itself was stopped, the silence that it then finds proves nothing and is forgiven. A worker
that came back gets its slots bit by bit.
"""

from __future__ import annotations

import math

from common.errors import Code
from common.identity import AttemptKey
from common.messages import Role
from services.router.admission.stream_limits import KNOWN_SECONDS, StreamLimit, stream_limits
from services.router.events import Action, Note
from services.router.fleet.liveness import may_eject, must_eject, probation_seconds, stalled
from services.router.fleet.prompt_quarantine import PROOF_SECONDS, Death
from services.router.records.attempt import Attempt
from services.router.records.gateway import Gateway
from services.router.records.states import AttemptState, WorkerEvent, WorkerState
from services.router.records.worker import Worker
from services.router.rules import attempt_lifecycle, submit
from services.router.tables import SharedTables, Tables

ORPHANS_MAX = 4_096


def record_traffic(tables: Tables, worker: Worker, now: float) -> list[Action]:
    """Any message is a sign of life; after enough of them a suspect is trusted again."""
    silent, worker.last_seen = now - worker.last_seen, now
    if worker.state is not WorkerState.SUSPECT:
        return []
    if worker.faultless_since is None or silent > _suspect_after(tables):
        worker.faultless_since = now
    if stalled(tables.settings.liveness, worker.load) or not check_probation(tables, worker, now):
        return []
    was_ready = worker.before_suspect is WorkerState.READY
    worker.apply(WorkerEvent.CLEARED if was_ready else WorkerEvent.REJOINED, "", now)
    return [Note("info", "worker.trusted", f"{worker.role} {worker.name} is trusted again")]


def check_probation(tables: Tables, worker: Worker, now: float) -> bool:
    """Whether its probation is over; it needs none if it never flapped. While it lasts, the
    worker's `reason` says so."""
    needed = probation_seconds(tables.settings.liveness, worker.flaps)
    since = worker.faultless_since
    if not needed or (since is not None and now - since >= needed):
        return True
    worker.reason = f"on probation for {needed:g} s: suspected or lost {worker.flaps} times lately"
    return False


def record_flap(tables: Tables, worker: Worker, now: float) -> None:
    """Only counts; the caller suspects the worker or notes its loss."""
    if now - worker.flapped_at > tables.settings.liveness.flap_window_ms / 1000:
        worker.flaps = 0
    worker.flaps += 1
    worker.flapped_at, worker.faultless_since = now, None


def check_engine(tables: Tables, worker: Worker, now: float) -> list[Action]:
    """After a Beat, which tells when the engine last made a step."""
    liveness, load = tables.settings.liveness, worker.load
    if not stalled(liveness, load):
        return []
    reason = f"its engine made no step for {load.step_age_ms / 1000:.1f} s"
    actions = _suspect(tables, worker, reason, now)
    worker.faultless_since = None
    if must_eject(liveness, load):
        actions += _eject(tables, worker, reason, now)
    return actions


def suspect_left_worker(
    tables: Tables, gateway: Gateway, identity: str, now: float
) -> list[Action]:
    """A gateway left a D because no tokens came from it. That alone may be the gateway's fault.
    With a Beat missing here, too, D is suspected sooner than by silence alone."""
    worker = tables.workers[identity]
    if now - worker.last_seen <= _suspect_after(tables) / 2:
        return []
    reason = f"silent for {now - worker.last_seen:.1f} s, and {gateway.name} gets no tokens from it"
    return _suspect(tables, worker, reason, now)


def check_silence(tables: Tables, now: float) -> list[Action]:
    """At each Tick: suspects, ejects and gives up workers that are silent for too long."""
    actions = _quarantine_prompts(tables, now)
    end_trials(tables, now)
    for worker in tables.workers.values():
        silent = now - worker.last_seen
        if silent <= _suspect_after(tables):
            continue
        reason = f"silent for {silent:.1f} s"
        actions += _suspect(tables, worker, reason, now)
        if silent > tables.settings.worker_timeout_ms / 1000:
            actions += _eject(tables, worker, reason, now)
    return actions


def give_up_held(tables: Tables, worker: Worker, sentence: str, now: float) -> list[Action]:
    """All that it holds is lost to the router. The worker is told so when it returns
    (`orphans`)."""
    actions = give_up(tables, worker, list(worker.held), sentence, now)
    worker.unconfirmed = {}
    worker.preexisting_kv_tokens = worker.preexisting_requests = 0
    return actions


def give_up(
    tables: Tables, worker: Worker, lost: list[AttemptKey], sentence: str, now: float
) -> list[Action]:
    """These of the attempts that it holds."""
    alone = tables.settings.alone
    mine = [key for key in lost if alone and not tables.attempts[key].adopted]
    actions: list[Action] = []
    for key in lost:
        attempt = tables.attempts[key]
        if attempt.decode == worker.identity:
            actions += attempt_lifecycle.fail(tables, attempt, sentence, now)
        else:
            attempt_lifecycle.lose_prefill(tables, attempt, sentence)
            if tables.quarantine.is_suspect(attempt.digest):
                actions += _spare_decode(tables, attempt, sentence, now)
    worker.orphans = (worker.orphans + mine)[-ORPHANS_MAX:]
    return actions


def record_crash_suspects(tables: Tables, worker: Worker, now: float) -> None:
    """The worker is lost without having said Leaving. All that D held, or that P had to compute,
    may be why. A stream that ran there for `PROOF_SECONDS` did not do it before, so that only this
    death counts."""
    tables.quarantine.record_loss(worker.identity, now)
    held = [tables.attempts[key] for key in worker.held]
    suspects = [a for a in held if a.decode == worker.identity or a.key in worker.computing]
    for attempt in (*suspects, *worker.abandoned):
        role = Role.DECODE if attempt.decode == worker.identity else Role.PREFILL
        if role is Role.DECODE and _is_proven(attempt, now):
            attempt_lifecycle.clear_prompt(tables, attempt)
        death = Death(role, attempt.decode_started is not None, attempt.trial)
        tables.quarantine.record_death(
            attempt.digest, attempt.request_id, worker.identity, death, now
        )


def _quarantine_prompts(tables: Tables, now: float) -> list[Action]:
    """At each Tick: the prompts whose verdict is due, and refuses what waits for it."""
    actions: list[Action] = []
    for row in tables.quarantine.verdicts(now):
        fields: dict[str, object] = {"request_id": row.request_id}
        sentence = submit.quarantine_sentence(row)
        actions.append(Note("warning", "prompt.quarantined", sentence, fields))
        actions += _refuse_queued(tables, row.digest, sentence, now)
    return actions


def _spare_decode(tables: Tables, attempt: Attempt, sentence: str, now: float) -> list[Action]:
    """D would now compute the prompt that it waits for, in company. The attempt ends instead, and
    the next one is a trial."""
    if attempt.state is not AttemptState.PLACED:
        return []
    sentence += "; the prompt is now tried alone"
    actions = attempt_lifecycle.abort(tables, attempt, sentence, now)
    return [*actions, attempt_lifecycle.failed_message(attempt.gateway, attempt.key, sentence)]


def end_trials(tables: Tables, now: float) -> None:
    """At each Tick: a suspected prompt that runs for `PROOF_SECONDS` after its first token is
    cleared, and its worker gets others again. A worker that nobody waits for any more, or only a
    prompt that is suspected no longer, does, too."""
    wait = tables.settings.liveness.trial_wait_ms / 1000
    is_suspect = tables.quarantine.is_suspect
    for identity, trial in list(tables.quarantine.trials.rows.items()):
        attempt = tables.attempts.get(trial.attempt) if trial.attempt is not None else None
        if attempt is not None and _is_proven(attempt, now):
            attempt_lifecycle.clear_prompt(tables, attempt)
        elif attempt is not None:
            continue
        elif is_suspect(trial.digest) and any(a.digest == trial.digest for a in tables.waiting):
            tables.changes.capacity |= now - trial.since >= wait
            continue
        del tables.quarantine.trials.rows[identity]
        tables.changes.capacity = True


def _is_proven(attempt: Attempt, now: float) -> bool:
    since = attempt.decode_started
    return since is not None and now - since >= PROOF_SECONDS


def _refuse_queued(tables: Tables, digest: bytes, sentence: str, now: float) -> list[Action]:
    actions: list[Action] = []
    for attempt in [a for a in tables.waiting if a.digest == digest]:
        actions += submit.refuse(tables, attempt, Code.REQUEST_QUARANTINED, sentence, now)
    return actions


def abort_messages(worker: Worker, keys: list[AttemptKey], reason: str) -> list[Action]:
    return [attempt_lifecycle.abort_message(worker.identity, key, reason) for key in keys]


def _suspect_after(tables: Tables) -> float:
    settings = tables.settings
    return settings.worker_timeout_ms / 1000 * settings.liveness.suspect_share


def forgive_silence(shared: SharedTables, now: float) -> None:
    """At each Tick, before silence is checked. If the router itself stood still, nobody was
    silent."""
    gap, shared.last_tick = now - shared.last_tick, now
    if gap <= shared.settings.liveness.late_tick_ms / 1000:
        return
    peers: list[Worker | Gateway] = [*shared.workers(), *shared.gateways.values()]
    for peer in peers:
        peer.last_seen = min(now, peer.last_seen + gap)
    for tables in shared.models.values():
        tables.quarantine.postpone(gap, now)


def _suspect(tables: Tables, worker: Worker, reason: str, now: float) -> list[Action]:
    if worker.state not in (WorkerState.READY, WorkerState.JOINING):
        return []
    worker.before_suspect = worker.state
    record_flap(tables, worker, now)
    worker.apply(WorkerEvent.SUSPECTED, reason, now)
    sentence = f"{worker.role} {worker.name} gets nothing new: {reason}"
    return [Note("warning", "worker.suspect", sentence)]


def _eject(tables: Tables, worker: Worker, reason: str, now: float) -> list[Action]:
    """A hung daemon reads the Aborts when it wakes, a daemon with a hung engine reads them at
    once."""
    if worker.away or not _may_eject(tables, worker):
        return []
    sentence = f"{worker.role} worker {worker.name} was ejected: {reason}"
    note = Note("warning", "worker.ejected", f"{sentence}; it held {len(worker.held)} requests")
    alone = tables.settings.alone
    held = [key for key in worker.held if alone and not tables.attempts[key].adopted]
    record_crash_suspects(tables, worker, now)
    actions = [note, *give_up_held(tables, worker, sentence, now)]
    worker.apply(WorkerEvent.EJECTED, reason, now)
    return actions + abort_messages(worker, held, "given up: " + reason)


def _may_eject(tables: Tables, worker: Worker) -> bool:
    pool = pool_of(tables, worker)
    ejected = sum(w.state is WorkerState.EJECTED for w in pool)
    return may_eject(tables.settings.liveness, len(pool), ejected)


def pool_of(tables: Tables, worker: Worker) -> list[Worker]:
    """The connected workers of its role; of a mixed worker, and of those beside it, of either."""
    parts = {*worker.role.parts}
    return [
        w for w in tables.workers.values() if w.connected and not parts.isdisjoint(w.role.parts)
    ]


def set_slots(tables: Tables, now: float) -> None:
    """Sets the slots of workers in their slow start, and of those whose steps would be too long; at
    each Tick, and whenever the state of a worker changed, before anything is placed."""
    longest = tables.settings.itl_slo_ms / 1000
    limits = _limits(tables, longest, now) if longest else {}
    for identity, worker in tables.workers.items():
        limit = limits.get(identity)
        if limit is not None or (worker.ramp_from is not None and worker.ready):
            slots = worker.capacity.max_num_seqs
            if worker.ramp_from is not None and worker.role is not Role.POOL:
                slots = _ramped(tables, worker, worker.ramp_from, now)
            patient = limit is not None and limit.patient
            worker.set_slots(min(slots, limit.slots) if limit else slots, patient=patient)


def _limits(tables: Tables, longest_s: float, now: float) -> dict[str, StreamLimit]:
    """By identity, of the ready decode workers."""
    decodes = {
        identity: (
            worker.speed.step,
            worker.capacity.max_num_seqs,
            now - worker.speed.measured <= KNOWN_SECONDS,
        )
        for identity, worker in tables.workers.items()
        if worker.ready and worker.role.decodes
    }
    return stream_limits(decodes, tables.estimates.steps, longest_s)


def _ramped(tables: Tables, worker: Worker, since: float, now: float) -> int:
    """Its slots. The only worker of its role gets all at once, because no other could take the
    load."""
    config, slots_max = tables.admission.config, worker.capacity.max_num_seqs
    alone = any(tables.snapshots.totals(part).workers == 1 for part in worker.role.parts)
    seconds = 0.0 if alone else config.slow_start_ms / 1000
    slots = ramped_slots(slots_max, now - since, seconds, config.slow_start_share)
    if slots == slots_max:
        worker.ramp_from = None
    return slots


def ramped_slots(slots_max: int, since: float, ramp: float, first_share: float) -> int:
    """Slots of a worker that came back `since` seconds ago, so that it is not overloaded while it
    is cold: `first_share` of its slots at first, linearly to all of them after `ramp` seconds, and
    at least 1."""
    if since >= ramp:
        return slots_max
    share = first_share + (1.0 - first_share) * max(0.0, since) / ramp
    return min(slots_max, max(1, math.ceil(slots_max * share)))
