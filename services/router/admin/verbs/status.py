"""`status`: whether the fleet can serve, how full it is, and what went wrong."""

from __future__ import annotations

import msgspec

from common.messages import Role
from common.net.admin_status import Alarm, Status, Totals
from common.net.admin_verbs import Value
from services.router.admin.verb import View
from services.router.degradation.detector import Cause


def run(view: View, _: dict[str, Value]) -> Status:
    tables, counts = view.tables, view.tables.counts
    fleet, settings, limits = tables.fleet, tables.settings, tables.limits
    placement, options = tables.placement_memory, tables.placement_memory.options
    rate = tables.drain_rate.per_second(view.now)
    workers = [worker for worker in tables.workers.values() if not worker.away]
    slots = sum(w.capacity.max_num_seqs for w in workers if w.role is Role.DECODE and w.ready)
    return Status(
        ready=fleet.ready,
        reason=fleet.reason,
        router=settings.name,
        incarnation=settings.incarnation,
        uptime_s=round(view.now - tables.started, 1),
        draining=tables.draining,
        policy=placement.policy.NAME,
        mode=options.mode,
        remote_prefill=options.remote_prefill,
        model=fleet.model,
        max_model_len=fleet.max_model_len,
        gateways=len(tables.live_gateways()),
        prefill_ready=fleet.prefill_ready,
        decode_ready=fleet.decode_ready,
        bad_health_verdicts=sum(worker.health_verdict is not None for worker in workers),
        active=tables.active,
        active_max=min(limits.max_active, slots) if limits.max_active else slots,
        queued=len(tables.waiting),
        queued_max=limits.max_queue,
        queued_bytes=tables.waiting.bytes_held,
        queued_bytes_max=limits.queue_bytes_max,
        ttft_slo_ms=limits.ttft_slo_ms,
        drained_per_s=None if rate is None else round(rate, 2),
        retry_reservations=len(tables.admission.reservations),
        retry_redeemed_share=round(tables.admission.reservations.redeemed_share, 2),
        estimates=tables.estimates.summary(),
        prefix_hashes=len(placement.prefixes),
        open_pairs=placement.pairs.open_count(),
        alarms=_alarms(view),
        totals=msgspec.convert(counts, Totals, from_attributes=True),
        refused=dict(counts.refused),
        dropped={**counts.dropped, **view.shell_dropped},
    )


def _alarms(view: View) -> tuple[Alarm, ...]:
    """The standing alarms, in the order of `Cause`."""
    alarms = view.tables.degradation.alarms
    return tuple(
        Alarm(cause.value, round(view.now - alarms[cause].since, 1), alarms[cause].sentence)
        for cause in Cause
        if cause in alarms
    )
