"""The health daemon's own metrics: its probes and its verdict."""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from services.health.verdicts.host_verdict import Probe, VerdictHysteresis


class HealthMetrics(Collector):
    """Prometheus collector of the health daemon."""

    def __init__(self, hysteresis: VerdictHysteresis) -> None:
        self._hysteresis = hysteresis
        #: The probes of the latest round.
        self.probes: list[Probe] = []

    def collect(self) -> Iterator[Metric]:
        value = GaugeMetricFamily(
            "baton_health_probe",
            "Last value of each probe: a share of the whole, seconds, or 1 for a failed check",
            labels=["probe"],
        )
        for probe in self.probes:
            value.add_metric([probe.name], probe.value)
        yield value
        yield GaugeMetricFamily(
            "baton_health_verdict",
            "0 up, 1 degraded, 2 down",
            value=float(self._hysteresis.verdict),
        )
