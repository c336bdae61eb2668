"""`workers`: each worker's state, the work that it has, and the load that it reports."""

from __future__ import annotations

from common.messages import PhaseReport, Role
from common.net.admin_rows import WorkerRow
from common.net.admin_verbs import Value
from services.router.admin.pair_rows import not_paired_with
from services.router.admin.verb import View
from services.router.fleet.pairing import may_give
from services.router.placement.fingerprint_mismatch import difference
from services.router.records.worker import Worker
from services.router.tables import RefusedWorker, Tables

ORDER = (Role.PREFILL, Role.MIXED, Role.DECODE, Role.POOL)
NO_LAYOUT = "it holds nothing before a worker with a store is ready"


def run(view: View, args: dict[str, Value]) -> list[WorkerRow]:
    role = args["role"]
    workers = [w for w in view.shared.workers() if not role or w.role.value == role]
    workers.sort(key=lambda w: (ORDER.index(w.role), w.name))
    refused = [w for w in view.shared.refused.values() if not role or w.role.value == role]
    rows = [_row(view.shared.models[worker.model], worker, view.now) for worker in workers]
    return [_refused_row(worker, view.now) for worker in refused] + rows


def _row(tables: Tables, worker: Worker, now: float) -> WorkerRow:
    capacity, load, phases = worker.capacity, worker.load, worker.phases or PhaseReport()
    return WorkerRow(
        name=worker.name,
        role=worker.role.value,
        state=worker.display_state,
        reason=_reason(worker),
        verdict=_verdict(worker),
        verdict_reason=worker.health_verdict.reason if worker.health_verdict is not None else "",
        since_s=round(now - worker.since, 1),
        seen_ms=round((now - worker.last_seen) * 1000),
        requests=len(worker.held),
        requests_max=capacity.max_num_seqs,
        queued_tokens=worker.queued_tokens,
        prefix_hashes=tables.placement_memory.prefixes.held(worker.identity),
        stored_hashes=tables.placement_memory.stored.held(worker.identity),
        disk_hashes=tables.placement_memory.on_disk.held(worker.identity),
        not_paired_with=tuple(not_paired_with(tables, worker.identity)),
        unlike=_unlike(tables, worker),
        kv_tokens_promised=worker.held_tokens,
        kv_tokens_foreign=worker.preexisting_kv_tokens,
        kv_tokens_max=worker.kv_tokens_max,
        kv_used=load.kv_used,
        running=load.running,
        waiting=load.waiting,
        step_age_ms=load.step_age_ms,
        block_tokens=capacity.block_tokens,
        kv_blocks=capacity.kv_blocks,
        kv_block_bytes=capacity.kv_block_bytes,
        kv_groups=capacity.kv_groups,
        max_model_len=capacity.max_model_len,
        model=worker.model,
        fingerprint=worker.fingerprint,
        fingerprint_parts=worker.fingerprint_parts,
        kv_address=worker.kv_address,
        incarnation=worker.incarnation,
        pid=worker.pid,
        wake_ms=worker.warm.wake_ms if worker.warm is not None else 0.0,
        configured_role=worker.role_state.configured or "",
        role_since_s=round(now - worker.role_state.since, 1),
        role_epoch=worker.role_state.epoch,
        becomes=worker.next_role or "",
        prefill_tokens_per_s=round(phases.prefill_tokens_per_s, 1),
        decode_tokens_per_s=round(phases.decode_tokens_per_s, 1),
        batch=round(phases.batch, 1),
        handoffs=phases.handoffs,
        gpu_busy=round(phases.gpu_busy, 3),
        gpu_memory_busy=round(phases.gpu_memory_busy, 3),
        accepted=round(phases.accepted, 3),
        tokens_per_output=round(phases.tokens_per_output, 2),
    )


def _reason(worker: Worker) -> str:
    if worker.drained:
        return "by an operator"
    return worker.reason or ("" if worker.fingerprint else NO_LAYOUT)


def _unlike(tables: Tables, worker: Worker) -> str:
    """How its fingerprint differs from that of a worker with which it would be paired."""
    others = [
        other
        for other in tables.workers.values()
        if _meet(other, worker) and other.connected and other.fingerprint
    ]
    if not worker.connected or not worker.fingerprint or not others:
        return ""
    if any(may_give(other, worker) for other in others):
        return ""
    other = others[0]
    differs = difference(worker.fingerprint_parts, other.fingerprint_parts)
    return f"unlike {other.name}, {differs or 'its fingerprint differs'}"


def _meet(one: Worker, other: Worker) -> bool:
    """Whether these two exchange KV, if they are alike; a pool does with all."""
    return one is not other and (one.role is not other.role or one.role is Role.MIXED)


def _refused_row(worker: RefusedWorker, now: float) -> WorkerRow:
    return WorkerRow(
        name=worker.name,
        role=worker.role.value,
        state="refused",
        reason=worker.sentence,
        since_s=round(now - worker.at, 1),
        seen_ms=round((now - worker.at) * 1000),
        requests=0,
        requests_max=0,
        queued_tokens=0,
        kv_tokens_promised=0,
        kv_tokens_foreign=0,
        kv_tokens_max=0,
        kv_used=0.0,
        running=0,
        waiting=0,
        step_age_ms=0.0,
        block_tokens=0,
        kv_blocks=0,
        kv_block_bytes=0,
        max_model_len=0,
        model=worker.model,
        fingerprint=worker.fingerprint,
        kv_address="",
        incarnation=worker.incarnation,
        pid=0,
    )


def _verdict(worker: Worker) -> str:
    """The verdict of its host's health daemon; empty = it has none against the worker."""
    if worker.health_verdict is None:
        return ""
    return "down" if worker.health_verdict.down else "degraded"
