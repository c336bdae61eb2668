"""The router's status as Prometheus metrics: what it decided, and how full it is."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import msgspec
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from common.messages import Role
from common.net.admin_status import ModelStatus, Status

TOTALS = {
    "submitted": "Attempts that gateways submitted",
    "placed": "Attempts given to a decode worker",
    "placed_local": "Attempts given to a decode worker without a prefill worker",
    "placed_ahead": "Attempts given to a decode worker before one of its slots was free",
    "moved": "Attempts that go on with the KV of the decode worker that the stream left",
    "adopted": "Attempts found on a worker, placed by another router or before a restart",
    "ended": "Attempts that ended with their last token",
    "failed": "Attempts that failed after they were placed",
    "cancelled": "Attempts given up by their gateway",
}
OPEN_PAIRS_HELP = (
    "Pairs of prefill and decode workers in quarantine or on trial after handoffs that failed"
)


def router_metrics(status: Status) -> Iterator[Metric]:
    """Counters begin anew when the router restarts."""
    totals = msgspec.structs.asdict(status.totals)
    for field, help_ in TOTALS.items():
        yield CounterMetricFamily(f"baton_router_requests_{field}", help_, value=totals[field])
    yield _by("requests_refused", "Attempts that were refused", "code", status.refused)
    yield _by("messages_dropped", "Messages that were not acted on", "reason", status.dropped)
    yield from _gauges(status)
    ready = GaugeMetricFamily(
        "baton_router_workers_ready",
        "Workers that may be given requests, each by the role that it has",
        labels=["role"],
    )
    for role, count in _by_role(status).items():
        ready.add_metric([role], count)
    yield ready
    yield from _by_model(status.models)


def _gauges(status: Status) -> Iterator[Metric]:
    for name, help_, value in (
        ("queue_requests", "Requests that wait for a worker", status.queued),
        ("queue_requests_max", "Requests that may wait for a worker", status.queued_max),
        ("queue_bytes", "Bytes of the requests that wait for a worker", status.queued_bytes),
        ("active_requests", "Requests that run on workers", status.active),
        (
            "active_requests_max",
            "Requests that may run on the workers that are ready",
            status.active_max,
        ),
        ("open_pairs", OPEN_PAIRS_HELP, status.open_pairs),
        ("ready", "1 while the fleet can serve", status.ready),
    ):
        yield GaugeMetricFamily(f"baton_router_{name}", help_, value=float(value))


def _by_model(models: Sequence[ModelStatus]) -> Iterator[Metric]:
    for name, help_, values in (
        ("queue_requests", "Requests that wait for a worker", [m.queued for m in models]),
        ("active_requests", "Requests that run on workers", [m.active for m in models]),
        ("active_requests_max", "Requests that may run there", [m.active_max for m in models]),
        ("kv_used_ratio", "Share of decode workers' KV in use", [m.kv_used for m in models]),
        ("ready", "1 while the model can be served", [m.ready for m in models]),
        ("workers_warm", "Decode workers that sleep until needed", [m.decode_warm for m in models]),
    ):
        family = GaugeMetricFamily(f"baton_router_model_{name}", help_, labels=["model"])
        for model, value in zip(models, values, strict=True):
            family.add_metric([model.model], float(value))
        yield family
    workers = GaugeMetricFamily(
        "baton_router_model_workers_ready",
        "Workers that may be given requests, by model, each by the role that it has",
        labels=["model", "role"],
    )
    for model in models:
        for role, count in _by_role(model).items():
            workers.add_metric([model.model, role], count)
    yield workers


def _by_role(status: Status | ModelStatus) -> dict[Role, int]:
    """A mixed worker counts as that alone, so that the sum is the number of ready workers."""
    mixed = status.mixed_ready
    return {
        Role.PREFILL: status.prefill_ready - mixed,
        Role.DECODE: status.decode_ready - mixed,
        Role.MIXED: mixed,
    }


def _by(name: str, help_: str, label: str, counts: dict[str, int]) -> Metric:
    family = CounterMetricFamily(f"baton_router_{name}", help_, labels=[label])
    for value, count in counts.items():
        family.add_metric([value], count)
    return family
