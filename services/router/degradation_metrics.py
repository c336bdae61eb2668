"""Silent degradation as Prometheus metrics: what was counted, and which alarms stand."""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from services.router.degradation import Cause, Degradation

SEEN = {
    "handoffs": (Cause.RECOMPUTED, "First tokens of prompts that were meant for a handoff"),
    "handoffs_weighed": (Cause.BYTES, "Handoffs whose bytes were compared with their blocks"),
    "handoffs_asked": (Cause.UNREACHED, "Placements of prompts that were meant for a handoff"),
}
BAD = {
    "handoffs_recomputed": (Cause.RECOMPUTED, "Prompts meant for a handoff, computed by decode"),
    "handoffs_wrong_bytes": (Cause.BYTES, "Handoffs whose bytes are not what their blocks weigh"),
}


def degradation_metrics(degradation: Degradation, now: float) -> Iterator[Metric]:
    for table, counts in ((SEEN, degradation.seen), (BAD, degradation.bad)):
        for name, (cause, help_) in table.items():
            yield CounterMetricFamily(f"baton_router_{name}", help_, value=counts[cause])
    yield GaugeMetricFamily(
        "baton_router_prefill_unreached_seconds",
        "Since when prompts come and reach no prefill worker; 0 while they do",
        value=degradation.unreached_seconds(now),
    )
    stands = GaugeMetricFamily(
        "baton_router_degraded",
        "1 while this cause silently degrades the fleet; `baton ctl status` says how",
        labels=["cause"],
    )
    raised = CounterMetricFamily(
        "baton_router_degradations", "Times that this cause was raised", labels=["cause"]
    )
    for cause in Cause:
        stands.add_metric([cause.value], float(cause in degradation.alarms))
        raised.add_metric([cause.value], degradation.raised[cause])
    yield stands
    yield raised
