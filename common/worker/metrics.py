"""A worker's Prometheus metrics."""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from common.engine.port import Engine
from common.worker.roles import RoleCores


class WorkerMetrics(Collector):
    def __init__(self, core: RoleCores, engine: Engine) -> None:
        self._core = core
        self._engine = engine

    def collect(self) -> Iterator[Metric]:
        load = self._engine.load()
        for name, help_, value in (
            ("requests", "Requests that this worker holds", float(self._core.active)),
            ("engine_running", "Sequences in the engine's batch", float(load.running)),
            ("engine_waiting", "Sequences that wait in the engine", float(load.waiting)),
            ("kv_used_ratio", "Share of the engine's KV blocks in use", load.kv_used),
            (
                "engine_step_age_seconds",
                "Since the engine's last step while it has work; 0 when it has none",
                load.step_age_ms / 1000,
            ),
            (
                "engine_step_seconds_p99",
                "Of its latest steps; 0 while too few were made",
                load.step_ms_p99 / 1000,
            ),
        ):
            yield GaugeMetricFamily(f"baton_worker_{name}", help_, value=value)
        role = GaugeMetricFamily(
            "baton_worker_role", "1 for the role that this worker has now", labels=["role"]
        )
        role.add_metric([self._core.role], 1.0)
        yield role
        yield CounterMetricFamily(
            "baton_worker_role_changes",
            "How often this worker has changed its role",
            value=self._core.epoch,
        )
        yield CounterMetricFamily(
            "baton_worker_messages_dropped",
            "Messages that were not acted on",
            value=self._core.dropped,
        )
