"""What `balance` tells of the controller of numbers, and of the load of each phase."""

from __future__ import annotations

from typing import Any

from common.messages import PhaseReport, Role
from services.router.fleet.balance.hint import PhaseLoad, figures, hint
from services.router.fleet.scale.controller import Order
from services.router.tables import Tables


def scale_row(tables: Tables, now: float) -> dict[str, Any]:
    """What `[router.scale]` sees, would order, has ordered, and what became of the last order."""
    scale, verdict = tables.scale, tables.scale.verdict
    row: dict[str, Any] = {"scale_mode": scale.config.mode, "scale_would": "", "scale_why": ""}
    if not scale.on:
        return row | {"scale_why": "[router.scale] mode is off, so nothing is watched"}
    if verdict is not None:
        need = verdict.need
        what = f"{need.workers} {'more' if need.out else 'fewer'} {need.role}" if need else ""
        row |= {"scale_would": what, "scale_why": verdict.sentence}
    if scale.open is not None:
        row["scale_open"] = _open(scale.open, now)
    if scale.over is not None:
        over = scale.over
        row["scale_did"] = f"{over.what}: {over.outcome}, {over.sentence}"
        row["scale_did_s"] = round(now - over.at, 1)
    return row


def _open(order: Order, now: float) -> str:
    left = f"{max(0.0, order.deadline - now):.0f} s are left"
    heard = f"; {order.heard}" if order.heard else ""
    return f"{order.what}, {order.phase} for {now - order.given:.0f} s, {left}: {order.why}{heard}"


def phases_row(tables: Tables) -> dict[str, Any]:
    """What both phases do, and which holds the other up."""
    prefill, decode = (_load(tables, role) for role in (Role.PREFILL, Role.DECODE))
    reports = [w.phases for w in tables.workers.values() if w.phases is not None and not w.away]
    handoffs = sum(report.handoffs for report in reports)
    return {
        "phases": figures(prefill, decode, handoffs),
        "hint": hint(prefill, decode, len(tables.waiting)),
    }


def _load(tables: Tables, role: Role) -> PhaseLoad:
    workers = [w for w in tables.workers.values() if role in w.role.parts and w.ready]
    count, reports = max(1, len(workers)), [w.phases or PhaseReport() for w in workers]
    seen = [report for report in reports if report.gpu_busy >= 0]
    slots = max(1, sum(worker.capacity.max_num_seqs for worker in workers))
    if role is Role.PREFILL:
        busy = sum(bool(worker.queued_tokens) for worker in workers) / count
        rate = sum(report.prefill_tokens_per_s for report in reports)
    else:
        busy = min(1.0, sum(len(worker.held) for worker in workers) / slots)
        rate = sum(report.decode_tokens_per_s for report in reports)
    batches = [report.batch for report in reports if report.batch]
    return PhaseLoad(
        workers=len(workers),
        busy=busy,
        tokens_per_s=rate,
        batch=sum(batches) / max(1, len(batches)),
        gpu=sum(r.gpu_busy for r in seen) / len(seen) if seen else -1.0,
        gpu_memory=sum(r.gpu_memory_busy for r in seen) / len(seen) if seen else -1.0,
    )
