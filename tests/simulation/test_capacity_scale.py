"""The capacity model at the size that a planner asks for."""

from __future__ import annotations

import pytest

from loadtest.capacity.fleet import Fleet, Scenario
from loadtest.capacity.profile import Profile
from loadtest.capacity.workload import Shape, poisson
from services.router.settings import Settings


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_four_thousand_workers() -> None:
    fleet = Fleet(
        Scenario(
            profile=Profile(),
            prefills=1_000,
            decodes=3_000,
            arrivals=poisson(800.0, 0.5, Shape(prompt=1_000, output=50), 1),
            seconds=0.5,
            settings=Settings(worker_timeout=1e9),
            beat_seconds=30.0,
        )
    )
    report = fleet.run()
    assert report.requests > 300
    assert report.ended == report.requests
    assert report.local_prefills == 0
    placements = [each.placement for each in fleet.core.tables.history]
    decodes = {p.decode.identity for p in placements if p is not None}
    assert len(decodes) > report.requests / 2, "an idle fleet spreads its work"
    fleet.core.check_invariants()
    print(f"{report.router_events} events, {report.cpu_seconds:.1f} s, {report.memory_mib:.0f} MiB")
