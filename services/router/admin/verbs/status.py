"""`status`: whether the fleet can serve, how full it is, and what went wrong."""

from __future__ import annotations

import msgspec

from common.messages import Role
from common.net.admin_status import Alarm, ModelStatus, Status, Totals
from common.net.admin_verbs import Value
from services.router.admin.verb import View
from services.router.degradation.detector import Cause
from services.router.tables import SharedTables, Tables


def run(view: View, _: dict[str, Value]) -> Status:
    shared, first, limits = view.shared, view.tables, view.tables.limits
    settings, counts, tables = shared.settings, shared.counts, list(shared.models.values())
    models = [_model(of_model, view.now) for of_model in tables]
    ready = any(model.ready for model in models)
    reservations = first.admission.reservations
    return Status(
        ready=ready,
        reason="" if ready else first.fleet.reason,
        router=settings.name,
        incarnation=settings.incarnation,
        uptime_s=round(view.now - shared.started, 1),
        draining=first.draining,
        policy=first.placement_memory.policy.NAME,
        mode=first.placement_memory.options.mode,
        remote_prefill=first.placement_memory.options.remote_prefill,
        model=", ".join(shared.models),
        max_model_len=max(model.max_model_len for model in models),
        gateways=len(shared.live_gateways()),
        prefill_ready=sum(model.prefill_ready for model in models),
        decode_ready=sum(model.decode_ready for model in models),
        bad_health_verdicts=sum(
            worker.health_verdict is not None for worker in shared.workers() if not worker.away
        ),
        active=sum(model.active for model in models),
        active_max=sum(model.active_max for model in models),
        queued=sum(model.queued for model in models),
        queued_max=limits.max_queue,
        queued_bytes=sum(model.queued_bytes for model in models),
        queued_bytes_max=limits.queue_bytes_max,
        ttft_slo_ms=limits.ttft_slo_ms,
        drained_per_s=_sum([model.drained_per_s for model in models]),
        retry_reservations=sum(len(of_model.admission.reservations) for of_model in tables),
        retry_redeemed_share=round(reservations.redeemed_share, 2),
        estimates=models[0].estimates,
        prefix_hashes=sum(len(of_model.placement_memory.prefixes) for of_model in tables),
        open_pairs=sum(of_model.placement_memory.pairs.open_count() for of_model in tables),
        alarms=_alarms(shared, view.now),
        totals=msgspec.convert(counts, Totals, from_attributes=True),
        refused=dict(counts.refused),
        dropped={**counts.dropped, **view.shell_dropped},
        models=tuple(models),
        decode_warm=sum(model.decode_warm for model in models),
        mixed_ready=sum(model.mixed_ready for model in models),
        pools_ready=sum(p.ready for of_model in tables for p in of_model.pools.values()),
    )


def _model(tables: Tables, now: float) -> ModelStatus:
    fleet, limits, admission = tables.fleet, tables.limits, tables.admission
    workers = [worker for worker in tables.workers.values() if worker.ready]
    slots = sum(w.capacity.max_num_seqs for w in workers if w.role.decodes)
    rate = tables.drain_rate.per_second(now)
    return ModelStatus(
        model=tables.model,
        ready=fleet.ready,
        reason=fleet.reason,
        max_model_len=fleet.max_model_len,
        prefill_ready=fleet.prefill_ready,
        decode_ready=fleet.decode_ready,
        active=tables.active,
        active_max=min(limits.max_active, slots) if limits.max_active else slots,
        queued=len(tables.waiting),
        queued_bytes=tables.waiting.bytes_held,
        drained_per_s=None if rate is None else round(rate, 2),
        kv_used=round(admission.kv_used, 4),
        closed=admission.closed or "",
        estimates=tables.estimates.summary(),
        decode_warm=sum(worker.availability == "warm" for worker in tables.workers.values()),
        mixed_ready=sum(worker.role is Role.MIXED for worker in workers),
    )


def _sum(rates: list[float | None]) -> float | None:
    known = [rate for rate in rates if rate is not None]
    return round(sum(known), 2) if known else None


def _alarms(shared: SharedTables, now: float) -> tuple[Alarm, ...]:
    """The standing alarms, in the order of `Cause`; where there are several models, each says its
    own."""
    several = len(shared.models) > 1
    return tuple(
        Alarm(
            cause.value,
            round(now - alarm.since, 1),
            f"{tables.model}: {alarm.sentence}" if several else alarm.sentence,
        )
        for cause in Cause
        for tables in shared.models.values()
        if (alarm := tables.degradation.alarms.get(cause)) is not None
    )
