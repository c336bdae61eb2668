"""A worker's Prometheus metrics."""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from common.engine.port import Engine
from common.messages import PhaseReport
from common.worker.phase_watch import PhaseWatch
from common.worker.phases import PhaseMeter
from common.worker.roles import RoleCores


class WorkerMetrics(Collector):
    def __init__(self, core: RoleCores, engine: Engine, phases: PhaseWatch) -> None:
        self._core = core
        self._engine = engine
        self._phases = phases

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
        yield from _phases(self._phases.meter, self._phases.report())
        yield CounterMetricFamily(
            "baton_worker_messages_dropped",
            "Messages that were not acted on",
            value=self._core.dropped,
        )


def _drafts(meter: PhaseMeter) -> Iterator[Metric]:
    """Nothing where nothing is drafted."""
    for name, help_, counts in (
        ("drafted", "Tokens that were drafted here, by position in a draft from 1", meter.drafted),
        ("accepted", "Drafted tokens that the model accepted, by position", meter.accepted),
    ):
        family = CounterMetricFamily(f"baton_worker_tokens_{name}", help_, labels=["position"])
        for position, count in enumerate(counts, 1):
            family.add_metric([str(position)], count)
        if counts:
            yield family


def _phases(meter: PhaseMeter, report: PhaseReport) -> Iterator[Metric]:
    tokens = CounterMetricFamily(
        "baton_worker_tokens", "Prompt tokens computed here, and tokens generated", labels=["phase"]
    )
    tokens.add_metric(["prefill"], meter.prefilled)
    tokens.add_metric(["decode"], meter.decoded)
    yield tokens
    yield from _drafts(meter)
    yield GaugeMetricFamily(
        "baton_worker_batch_sequences",
        "Sequences in a step that generated, mean of the last 10 s; 0 while none did",
        value=report.batch,
    )
    yield GaugeMetricFamily(
        "baton_worker_handoffs_in_flight",
        "Prompts whose KV is on its way here, and those whose KV others have not taken yet",
        value=report.handoffs,
    )
    if report.gpu_busy >= 0:
        yield GaugeMetricFamily(
            "baton_worker_gpu_busy_ratio",
            "Share of the time in which its GPUs computed, by NVML",
            value=report.gpu_busy,
        )
        yield GaugeMetricFamily(
            "baton_worker_gpu_memory_busy_ratio",
            "Share of the time in which the memory of its GPUs was read or written, by NVML",
            value=report.gpu_memory_busy,
        )
