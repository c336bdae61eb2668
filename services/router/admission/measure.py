"""The figures that admission reads between two Ticks, and the ramps of workers that came back."""

from __future__ import annotations

from common.messages import Role
from services.router.admission import gates
from services.router.admission.slow_start import slots
from services.router.records import Worker
from services.router.state import WorkerState
from services.router.tables import Tables


def measure(tables: Tables, now: float) -> None:
    """At each Tick; costs as much as there are workers."""
    state, config = tables.admission, tables.admission.config
    decodes = [w for w in tables.workers.values() if w.role is Role.DECODE]
    ready = [w for w in decodes if w.ready]
    state.capacity = _capacity(decodes, config.capacity_memory_ms / 1000, now)
    kv = sum(w.capacity.kv_blocks for w in ready)
    used = sum(w.load.kv_used * w.capacity.kv_blocks for w in ready)
    state.kv_used = used / kv if kv else 0.0
    state.largest_worker = max((w.capacity.max_num_seqs for w in ready), default=0)
    overdue = now - config.decode_queue_overdue_ms / 1000
    state.stuck = 0
    for since in state.handed.values():
        if since > overdue:
            break
        state.stuck += 1
    state.closed = gates.decode_queue(state.stuck, len(ready), config.decode_queue_per_worker)
    state.closed = state.closed or gates.kv_pressure(state.kv_used, config.kv_refuse)
    ramp(tables, now)


def ramp(tables: Tables, now: float) -> None:
    """Also whenever a worker became ready, before anything is placed there."""
    for worker in tables.workers.values():
        if worker.ramp_from is not None and worker.ready:
            _ramp(tables, worker, now)


def _capacity(decodes: list[Worker], memory: float, now: float) -> float:
    """Healthy share of the slots of those who are there, or were lost less than `memory` seconds
    ago. Who drains leaves by intent and does not count."""
    healthy = known = 0
    for worker in decodes:
        lost = worker.away and not worker.left and now - worker.since <= memory
        down = worker.barred and not worker.drained
        if worker.ready:
            healthy += worker.capacity.max_num_seqs
        if worker.ready or worker.state is WorkerState.SUSPECT or lost or down:
            known += worker.capacity.max_num_seqs
    return healthy / known if known else 1.0


def _ramp(tables: Tables, worker: Worker, now: float) -> None:
    """Who is the only one of its role gets all at once: nobody else could take the load."""
    config = tables.admission.config
    assert worker.ramp_from is not None
    most, since = worker.capacity.max_num_seqs, now - worker.ramp_from
    alone = tables.board.totals(worker.role).workers == 1
    seconds = 0.0 if alone else config.slow_start_ms / 1000
    given = slots(most, since, seconds, config.slow_start_share)
    if given != worker.slots:
        worker.slots = given
        worker.changed[worker.identity] = worker
        tables.freed = True
    if given == most:
        worker.ramp_from = None
