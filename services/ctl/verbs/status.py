"""`baton ctl status`: whether the fleet can serve, and how full it is."""

from __future__ import annotations

from typing import Any

import msgspec

from common.net.admin_status import Alarm, LearnedEstimates, ModelStatus, Status
from services.ctl.table import Cell, duration, fields, size


def render(result: Any) -> str:
    status = msgspec.convert(result, Status)
    rate = status.drained_per_s
    share = f"{status.retry_redeemed_share:.0%} of them expected"
    rows: list[tuple[str, Cell]] = [
        ("ready", "yes" if status.ready else f"NO: {status.reason}"),
        *[(f"FLAPPING {name}", sentence) for name, sentence in status.flapping.items()],
        *[(f"ALARM {alarm.cause}", _alarm(alarm)) for alarm in status.alarms],
        ("model", status.model),
        ("router", f"{status.router} (up {duration(status.uptime_s * 1000)})"),
        ("prefill ready", status.prefill_ready),
        ("decode ready", status.decode_ready),
        *([("decode warm", status.decode_warm)] if status.decode_warm else []),
        *([("pools ready", status.pools_ready)] if status.pools_ready else []),
        ("gateways", status.gateways),
        ("running", f"{status.active} of {status.active_max}"),
        ("queued", f"{status.queued} of {status.queued_max}"),
        ("queued bytes", size(status.queued_bytes)),
        ("drain rate", "not measured yet" if rate is None else f"{rate} requests/s"),
        ("policy", f"{status.policy}, {status.mode}"),
        ("remote prefill", status.remote_prefill),
        ("bad health verdicts", status.bad_health_verdicts),
        ("prefix blocks indexed", status.prefix_hashes),
        ("pair breakers open", status.open_pairs),
        ("retry reservations", f"{status.retry_reservations} told when to come back, {share}"),
    ]
    if len(status.models) > 1:
        rows += [(f"model {model.model}", _model(model)) for model in status.models]
        for model in status.models:
            rows += _learned(f"learned {model.model} ", model.estimates)
    else:
        rows += _learned("learned ", status.estimates)
    rows += [(f"total {name}", value) for name, value in msgspec.to_builtins(status.totals).items()]
    for kind, counts in (("refused", status.refused), ("dropped", status.dropped)):
        rows += [(f"{kind} {name}", value) for name, value in sorted(counts.items())]
    return fields(rows)


def _model(model: ModelStatus) -> str:
    state = f"NO: {model.reason}" if not model.ready else model.closed or "ready"
    rate = "" if model.drained_per_s is None else f", {model.drained_per_s} requests/s"
    warm = f" and {model.decode_warm} warm" if model.decode_warm else ""
    return (
        f"{state}; {model.prefill_ready} prefill, {model.decode_ready} decode{warm}; "
        f"{model.active} of {model.active_max} running, {model.queued} queued{rate}; "
        f"{model.kv_used:.0%} of KV used"
    )


def _learned(title: str, estimates: LearnedEstimates) -> list[tuple[str, Cell]]:
    return [
        (f"{title}{name}", _curve(estimate) if isinstance(estimate, dict) else estimate)
        for name, estimate in msgspec.to_builtins(estimates).items()
    ]


def _curve(estimates: dict[str, float]) -> str:
    """Estimates by the number of tokens, or of requests in a batch."""
    return ", ".join(f"{tokens}: {value:g}" for tokens, value in estimates.items())


def _alarm(alarm: Alarm) -> str:
    return f"{alarm.sentence} (for {duration(alarm.since_s * 1000)})"
