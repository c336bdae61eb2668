"""The capacity model at the size that a planner asks for.

`make test` plays 400 workers and `make soak-capacity` 4,000, both with about 400 requests.
"""

from __future__ import annotations

import os

import pytest

from loadtest.capacity.fleet import Fleet, Scenario
from loadtest.capacity.profile import Profile
from loadtest.capacity.workload import RequestShape, poisson
from services.router.settings import Settings

WORKERS = int(os.environ.get("BATON_CAPACITY_WORKERS", "400"))


@pytest.mark.timeout(300)
def test_an_idle_fleet_of_many_workers_serves_all_and_spreads_its_work() -> None:
    seconds = 2_000 / WORKERS
    rate = WORKERS / 5
    fleet = Fleet(
        Scenario(
            profile=Profile(),
            prefills=WORKERS // 4,
            decodes=WORKERS * 3 // 4,
            arrivals=poisson(rate, seconds, RequestShape(prompt=1_000, output=50), 1),
            seconds=seconds,
            settings=Settings(worker_timeout_ms=1e12),
            beat_seconds=30.0,
        )
    )
    report = fleet.run()
    assert report.requests > 300
    assert report.ended == report.requests
    assert report.local_prefills == 0
    placements = [attempt.placement for attempt in fleet.core.tables.history]
    decodes = {p.decode.identity for p in placements if p is not None}
    assert len(decodes) > min(report.requests, WORKERS * 3 // 4) / 2, (
        "an idle fleet spreads its work"
    )
    fleet.core.check_invariants()
    print(f"{report.router_events} events, {report.cpu_seconds:.1f} s, {report.memory_mib:.0f} MiB")
