"""A batch goes on as soon as it can: no step of it waits for a clock."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from common.messages import Submit
from tests.component.services.gateway.rig import MakeRig, delta
from tests.component.services.gateway.test_daemon_jobs import content, started, until

LINES = 3


@pytest.fixture
def jobs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """Loops go round when they are woken, and leases outlast the test."""
    monkeypatch.setattr("services.gateway.jobs.leases.POLL_SECONDS", 600.0)
    return {"path": str(tmp_path / "jobs"), "lease_ms": 600_000.0, "lines_waiting": 1}


async def test_planning_placing_and_the_last_line_bring_what_comes_next(
    make_rig: MakeRig, jobs: dict[str, Any]
) -> None:
    rig = await make_rig(jobs=jobs)
    await rig.worker()
    batch = await started(rig, LINES)
    submits = [await rig.router.next(Submit) for _ in range(LINES)]
    for submit in submits:
        rig.workers[0].send(delta(submit, 0, "ok", finish_reason="length"))
    shown = await until(rig, batch, "completed")
    assert len(await content(rig, shown["output_file_id"])) == LINES


async def test_a_line_that_ends_brings_the_next_one(
    make_rig: MakeRig, jobs: dict[str, Any]
) -> None:
    rig = await make_rig(jobs=jobs | {"lines_at_once": 1})
    await rig.worker()
    batch = await started(rig, LINES)
    for _ in range(LINES):
        submit = await rig.router.next(Submit)
        rig.workers[0].send(delta(submit, 0, "ok", finish_reason="length"))
    await until(rig, batch, "completed")
