"""Verdicts: worse soon, better late, never flapping: the tests that start something."""

from __future__ import annotations

from pathlib import Path

from common.clock import SystemClock
from services.health.dashboard.fleet import FleetWatch
from services.health.verdicts.host_verdict import (
    HealthLevel,
)
from services.health.verdicts.probes import router_probe


async def test_a_router_that_is_not_there_is_silent(tmp_path: Path) -> None:
    watch = FleetWatch([f"ipc://{tmp_path}/admin.sock"], SystemClock())
    await watch.poll(closely=True)
    found = router_probe(watch.status)
    assert found.value == 1.0
    assert found.verdict is HealthLevel.DEGRADED
    assert watch.page_state()["points"] == []
