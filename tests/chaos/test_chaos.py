"""A cut of `make chaos`: workers of both roles are killed under load, an engine hangs."""

from __future__ import annotations

import pytest

from tests.chaos.report import table
from tests.chaos.scenarios import deaths, engines, leaving

pytestmark = [pytest.mark.slow, pytest.mark.timeout(180)]

KILLS = 3


async def test_killed_workers_cost_no_request_and_no_token() -> None:
    rows = await deaths.workers(KILLS, rate=10, least=100, settings=deaths.PATIENT)
    lost, _, left = rows
    assert lost.good, table(rows)
    assert left.good, table(rows)


async def test_an_engine_that_hangs_ends_its_daemon_and_costs_no_token() -> None:
    rows = await engines.lost("hang", rate=6)
    lost, end, _ = rows
    assert lost.good, table(rows)
    assert end.good, table(rows)


async def test_a_rollout_restarts_a_worker_and_costs_no_request() -> None:
    rows = await leaving.rollout(6, ("d0",))
    assert all(row.good for row in rows), table(rows)
