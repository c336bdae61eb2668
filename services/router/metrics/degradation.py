"""The detector of silent degradation as Prometheus metrics: its counts and its standing alarms."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from services.router.degradation.detector import Cause, DegradationDetector

OBSERVED = {
    "handoffs": (Cause.RECOMPUTED, "First tokens of prompts that were meant for a handoff"),
    "handoffs_weighed": (Cause.BYTES, "Handoffs whose bytes were compared with their blocks"),
    "handoffs_asked": (Cause.UNREACHED, "Placements of prompts that were meant for a handoff"),
}
FAILED = {
    "handoffs_recomputed": (Cause.RECOMPUTED, "Prompts meant for a handoff, computed by decode"),
    "handoffs_wrong_bytes": (Cause.BYTES, "Handoffs whose bytes are not what their blocks weigh"),
}


def degradation_metrics(detectors: Sequence[DegradationDetector], now: float) -> Iterator[Metric]:
    """Of all models together."""
    for name, (cause, help_) in OBSERVED.items():
        observed = sum(detector.observed[cause] for detector in detectors)
        yield CounterMetricFamily(f"baton_router_{name}", help_, value=observed)
    for name, (cause, help_) in FAILED.items():
        failed = sum(detector.failed[cause] for detector in detectors)
        yield CounterMetricFamily(f"baton_router_{name}", help_, value=failed)
    yield GaugeMetricFamily(
        "baton_router_prefill_unreached_seconds",
        "Since when prompts come and reach no prefill worker; 0 while they do",
        value=max(detector.unreached_seconds(now) for detector in detectors),
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
        standing = any(cause in detector.alarms for detector in detectors)
        stands.add_metric([cause.value], float(standing))
        raised.add_metric([cause.value], sum(detector.raised[cause] for detector in detectors))
    yield stands
    yield raised
