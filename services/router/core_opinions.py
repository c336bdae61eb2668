"""What the health daemon of a worker's host thinks of it, as the worker's Beats bring it. Called by
`core_peers` only.

An opinion is advice. A degraded worker gets what no other of its role has room for. One said to be
down gets nothing new, and what it has goes on; but never so many of a pool as to leave it without a
ready worker, nor more than may be ejected of it, for a host's health daemon may be wrong, too.
"""

from __future__ import annotations

from common.messages import Beat, Opinion
from services.router.events import Action, Note
from services.router.liveness import may_eject
from services.router.records import Worker
from services.router.state import WorkerState
from services.router.tables import Tables

REASON_CHARS_MAX = 256


def beat(tables: Tables, worker: Worker, message: Beat) -> list[Action]:
    """No opinion is a good one: none is needed."""
    before, opinion = worker.opinion, message.opinion
    if opinion is None and before is None:
        return []
    worker.opinion = opinion
    barred = opinion is not None and opinion.down and _may_bar(tables, worker)
    moved = worker.set_barred(barred)
    if moved:
        tables.workers_changed = True
    if moved or (opinion is None) is not (before is None):
        tables.doubtful = frozenset(
            each.identity for each in tables.workers.values() if each.opinion is not None
        )
        return [_told(worker, opinion)]
    return []


def _told(worker: Worker, opinion: Opinion | None) -> Note:
    who = f"{worker.role} {worker.name}"
    if opinion is None:
        return Note("info", "worker.judged", f"{who} is well again, says its host's health daemon")
    what = "gets nothing new" if worker.barred else "gets what no other can take"
    reason = opinion.reason[:REASON_CHARS_MAX]
    return Note(
        "warning", "worker.judged", f"{who} {what}, says its host's health daemon: {reason}"
    )


def _may_bar(tables: Tables, worker: Worker) -> bool:
    pool = [w for w in tables.workers.values() if w.role is worker.role and w.connected]
    others = [w for w in pool if w is not worker]
    out = sum(w.barred or w.state is WorkerState.EJECTED for w in others)
    return any(w.ready for w in others) and may_eject(tables.settings.liveness, len(pool), out)
