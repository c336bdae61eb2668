"""What a worker's metrics say of drafts."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from prometheus_client.registry import CollectorRegistry

from common.engine.port import Batch, Drafts
from common.messages import Load, PhaseReport, Role
from common.worker.metrics import WorkerMetrics
from common.worker.phases import PhaseMeter


def registry(meter: PhaseMeter) -> CollectorRegistry:
    core: Any = SimpleNamespace(active=0, role=Role.DECODE, epoch=0, dropped=0)
    engine: Any = SimpleNamespace(load=Load)
    phases: Any = SimpleNamespace(meter=meter, report=PhaseReport)
    made = CollectorRegistry()
    made.register(WorkerMetrics(core, engine, phases))
    return made


def test_drafted_and_accepted_tokens_are_told_by_position() -> None:
    meter = PhaseMeter(0.0)
    meter.stepped(Batch(drafts=Drafts((3, 2), (2, 1))))
    told = registry(meter)
    for name, counts in (("drafted", (3, 2)), ("accepted", (2, 1))):
        for position, count in enumerate(counts, 1):
            labels = {"position": str(position)}
            assert told.get_sample_value(f"baton_worker_tokens_{name}_total", labels) == count


def test_a_worker_that_drafts_nothing_says_nothing_of_it() -> None:
    told = registry(PhaseMeter(0.0))
    names = {metric.name for metric in told.collect()}
    assert "baton_worker_tokens" in names
    assert "baton_worker_tokens_drafted" not in names
