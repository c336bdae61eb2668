"""What the health daemon of a worker's host has against it; the worker's Beats carry it.

A verdict is advice. A worker that is degraded gets only what no other of its role has room for. One
that is said to be down gets nothing new, and what it has goes on. The health daemon of a host may
be wrong, so a pool is never left without a ready worker, and no more of it is excluded than may be
ejected.
"""

from __future__ import annotations

from common.messages import Beat, HealthVerdict
from services.router.events import Action, Note
from services.router.fleet.liveness import may_eject
from services.router.records.states import WorkerState
from services.router.records.worker import Worker
from services.router.rules import worker_trust
from services.router.tables import Tables

REASON_CHARS_MAX = 256


def update_verdict(tables: Tables, worker: Worker, message: Beat) -> list[Action]:
    """A Beat without a verdict means that nothing is held against the worker."""
    before, verdict = worker.health_verdict, message.health_verdict
    if verdict is None and before is None:
        return []
    worker.health_verdict = verdict
    excluded = verdict is not None and verdict.down and _may_exclude(tables, worker)
    changed = worker.set_excluded(excluded)
    if changed or (verdict is None) is not (before is None):
        tables.unhealthy = frozenset(
            other.identity for other in tables.workers.values() if other.health_verdict is not None
        )
        return [_verdict_note(worker, verdict)]
    return []


def _verdict_note(worker: Worker, verdict: HealthVerdict | None) -> Note:
    who = f"{worker.role} {worker.name}"
    if verdict is None:
        return Note("info", "worker.judged", f"{who} is well again, says its host's health daemon")
    what = "gets nothing new" if worker.excluded else "gets only what no other can take"
    reason = verdict.reason[:REASON_CHARS_MAX]
    return Note(
        "warning", "worker.judged", f"{who} {what}, says its host's health daemon: {reason}"
    )


def _may_exclude(tables: Tables, worker: Worker) -> bool:
    pool = worker_trust.pool_of(tables, worker)
    others = [w for w in pool if w is not worker]
    out = sum(w.excluded or w.state is WorkerState.EJECTED for w in others)
    served = {part for other in others if other.ready for part in other.role.parts}
    return served.issuperset(worker.role.parts) and may_eject(
        tables.settings.liveness, len(pool), out
    )
