"""`workers`: each worker's state, what it was given, and what it says it holds."""

from __future__ import annotations

from typing import Any

from common.messages import Role
from services.router.admin.pair_rows import not_paired_with
from services.router.admin.verb import Arg, Value, Verb, View
from services.router.records import Worker
from services.router.tables import Tables


def run(view: View, args: dict[str, Value]) -> list[dict[str, Any]]:
    role = args["role"]
    workers = [w for w in view.tables.workers.values() if not role or w.role.value == role]
    workers.sort(key=lambda w: (w.role is not Role.PREFILL, w.name))
    return [_row(view.tables, worker, view.now) for worker in workers]


def _row(tables: Tables, worker: Worker, now: float) -> dict[str, Any]:
    capacity, load = worker.capacity, worker.load
    return {
        "name": worker.name,
        "role": worker.role.value,
        "state": worker.shown,
        "reason": "by an operator" if worker.drained else worker.reason,
        "verdict": _verdict(worker),
        "verdict_reason": worker.opinion.reason if worker.opinion is not None else "",
        "since_s": round(now - worker.since, 1),
        "seen_ms": round((now - worker.last_seen) * 1000),
        "requests": len(worker.held),
        "requests_max": capacity.max_num_seqs,
        "queued_tokens": worker.queued_tokens,
        "prefix_hashes": tables.placing.prefixes.held(worker.identity),
        "not_paired_with": not_paired_with(tables, worker.identity),
        "kv_tokens_promised": worker.held_tokens,
        "kv_tokens_foreign": worker.foreign_tokens,
        "kv_tokens_max": worker.kv_tokens_max,
        "kv_used": load.kv_used,
        "running": load.running,
        "waiting": load.waiting,
        "step_age_ms": load.step_age_ms,
        "block_tokens": capacity.block_tokens,
        "kv_blocks": capacity.kv_blocks,
        "kv_block_bytes": capacity.kv_block_bytes,
        "max_model_len": capacity.max_model_len,
        "model": worker.model,
        "fingerprint": worker.fingerprint,
        "fingerprint_parts": worker.fingerprint_parts,
        "kv_address": worker.kv_address,
        "incarnation": worker.incarnation,
        "pid": worker.pid,
    }


def _verdict(worker: Worker) -> str:
    """Of its host's health daemon."""
    if worker.opinion is None:
        return ""
    return "down" if worker.opinion.down else "degraded"


VERB = Verb(
    "workers",
    "every worker: state, load, KV promised and used",
    (Arg("role", "only this role", default="", choices=("", "prefill", "decode")),),
    run,
)
