"""The router's `status` answer as Prometheus metrics: what it decided, and how full it is."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

TOTALS = {
    "submitted": "Attempts that gateways submitted",
    "placed": "Attempts given to a decode worker",
    "placed_local": "Attempts given to a decode worker without a prefill worker",
    "adopted": "Attempts found on a worker, placed by another router or before a restart",
    "ended": "Attempts that ended with their last token",
    "failed": "Attempts that failed after they were placed",
    "cancelled": "Attempts given up by their gateway",
}
GAUGES = {
    "queued": ("queue_requests", "Requests that wait for a worker"),
    "queued_max": ("queue_requests_max", "Requests that may wait for a worker"),
    "queued_bytes": ("queue_bytes", "Bytes of the requests that wait for a worker"),
    "active": ("active_requests", "Requests that run on workers"),
    "active_max": ("active_requests_max", "Requests that may run on the workers that are ready"),
    "pairs_resting": (
        "open_pairs",
        "Pairs of prefill and decode workers in quarantine or on trial after handoffs that failed",
    ),
    "ready": ("ready", "1 while the fleet can serve"),
}


def router_metrics(status: dict[str, Any]) -> Iterator[Metric]:
    """`status`: the verb's answer. Counters begin anew when the router restarts."""
    for field, help_ in TOTALS.items():
        yield CounterMetricFamily(
            f"baton_router_requests_{field}", help_, value=status["totals"][field]
        )
    yield _by("requests_refused", "Attempts that were refused", "code", status["refused"])
    yield _by("messages_dropped", "Messages that were not acted on", "reason", status["dropped"])
    for field, (name, help_) in GAUGES.items():
        yield GaugeMetricFamily(f"baton_router_{name}", help_, value=float(status[field]))
    ready = GaugeMetricFamily(
        "baton_router_workers_ready", "Workers that may be given requests", labels=["role"]
    )
    for role in ("prefill", "decode"):
        ready.add_metric([role], status[f"{role}_ready"])
    yield ready


def _by(name: str, help_: str, label: str, counts: dict[str, int]) -> Metric:
    family = CounterMetricFamily(f"baton_router_{name}", help_, labels=[label])
    for value, count in counts.items():
        family.add_metric([value], count)
    return family
