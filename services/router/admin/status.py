"""`status`: can it serve, how full is it, how fast does it drain, what went wrong."""

from __future__ import annotations

from typing import Any

from common.messages import Role
from services.router.admin.verb import Value, Verb, View
from services.router.degradation import Cause


def run(view: View, _: dict[str, Value]) -> dict[str, Any]:
    tables, counts = view.tables, view.tables.counts
    fleet, settings, limits = tables.fleet, tables.settings, tables.limits
    rate = tables.drain_rate.per_second(view.now)
    states = [w for w in tables.workers.values() if not w.away]
    slots = sum(w.capacity.max_num_seqs for w in states if w.role is Role.DECODE and w.ready)
    return {
        "ready": fleet.ready,
        "reason": fleet.reason,
        "router": settings.name,
        "incarnation": settings.incarnation,
        "uptime_s": round(view.now - tables.started, 1),
        "draining": tables.draining,
        "policy": tables.placing.policy.NAME,
        "mode": tables.placing.rules.mode,
        "remote_prefill": tables.placing.rules.remote_prefill,
        "model": fleet.model,
        "max_model_len": fleet.max_model_len,
        "gateways": len(tables.live_gateways()),
        "prefill_ready": fleet.prefill_ready,
        "decode_ready": fleet.decode_ready,
        "workers_doubted": sum(w.opinion is not None for w in states),
        "active": tables.active,
        "active_max": min(limits.max_active, slots) if limits.max_active else slots,
        "queued": len(tables.waiting),
        "queued_max": limits.max_queue,
        "queued_bytes": tables.waiting.bytes_held,
        "queued_bytes_max": limits.queue_bytes_max,
        "ttft_slo_ms": limits.ttft_slo_ms,
        "drained_per_s": None if rate is None else round(rate, 2),
        "appointments": len(tables.admission.returns),
        "appointments_kept": round(tables.admission.returns.share, 2),
        "estimates": tables.estimates.shown(),
        "prefix_hashes": len(tables.placing.prefixes),
        "pairs_resting": tables.placing.pairs.resting(),
        "alarms": _alarms(view),
        "totals": {
            "submitted": counts.submitted,
            "placed": counts.placed,
            "placed_local": counts.placed_local,
            "adopted": counts.adopted,
            "ended": counts.ended,
            "failed": counts.failed,
            "cancelled": counts.cancelled,
        },
        "refused": dict(counts.refused),
        "dropped": {**counts.dropped, **view.shell_dropped},
    }


def _alarms(view: View) -> list[dict[str, Any]]:
    """What degrades the fleet silently, in a fixed order."""
    alarms = view.tables.degradation.alarms
    return [
        {
            "cause": cause.value,
            "since_s": round(view.now - alarms[cause].since, 1),
            "sentence": alarms[cause].sentence,
        }
        for cause in Cause
        if cause in alarms
    ]


VERB = Verb("status", "whether the fleet can serve, and how full it is", (), run)
