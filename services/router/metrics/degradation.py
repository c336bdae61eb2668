"""The detector of silent degradation as Prometheus metrics: its counts and its standing alarms."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

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


def degradation_metrics(
    detectors: Mapping[str, DegradationDetector], now: float
) -> Iterator[Metric]:
    """`detectors`: that of each model, by its name."""
    for name, (cause, help_) in OBSERVED.items():
        counts = {model: detector.observed[cause] for model, detector in detectors.items()}
        yield _of_models(f"baton_router_{name}", help_, counts)
    for name, (cause, help_) in FAILED.items():
        counts = {model: detector.failed[cause] for model, detector in detectors.items()}
        yield _of_models(f"baton_router_{name}", help_, counts)
    unreached = GaugeMetricFamily(
        "baton_router_prefill_unreached_seconds",
        "Since when prompts come and reach no prefill worker; 0 while they do",
        labels=["model"],
    )
    stands = GaugeMetricFamily(
        "baton_router_degraded",
        "1 while this cause silently degrades the fleet; `baton ctl status` says how",
        labels=["model", "cause"],
    )
    raised = CounterMetricFamily(
        "baton_router_degradations", "Times that this cause was raised", labels=["model", "cause"]
    )
    for model, detector in detectors.items():
        unreached.add_metric([model], detector.unreached_seconds(now))
        for cause in Cause:
            stands.add_metric([model, cause.value], float(cause in detector.alarms))
            raised.add_metric([model, cause.value], detector.raised[cause])
    yield from (unreached, stands, raised)


def _of_models(name: str, help_: str, counts: Mapping[str, int]) -> Metric:
    family = CounterMetricFamily(name, help_, labels=["model"])
    for model, count in counts.items():
        family.add_metric([model], count)
    return family
