"""A cut of `make chaos`: workers are killed under load, an engine hangs, clients leave."""

from __future__ import annotations

import pytest

from tests.chaos.report import table
from tests.chaos.scenarios import closed, deaths, engines, leaving

pytestmark = [pytest.mark.long, pytest.mark.timeout(400)]

KILLS = 3


async def test_killed_workers_cost_no_request_and_no_token() -> None:
    rows = await deaths.workers(KILLS, rate=10, least=100, settings=deaths.PATIENT)
    lost, kinds, _, left = rows
    assert lost.good, table(rows)
    assert kinds.good, table(rows)
    assert left.good, table(rows)


async def test_an_engine_that_hangs_ends_its_daemon_and_costs_no_token() -> None:
    rows = await engines.lost("hang", rate=6)
    lost, end, _ = rows
    assert lost.good, table(rows)
    assert end.good, table(rows)


async def test_a_rollout_restarts_a_worker_and_costs_no_request() -> None:
    rows = await leaving.rollout(6, ("d0",))
    assert all(row.good for row in rows), table(rows)


async def test_clients_that_leave_in_any_phase_leave_nothing_behind() -> None:
    """Each phase was reached by all of a round; how fast it is free, `make chaos` judges."""
    rows = await closed.everywhere(closed.AT_ONCE)
    assert [row.test for row in rows[:4]] == [
        "clients leave while P computes",
        "clients leave while KV is on its way",
        "clients leave while D streams",
        "clients leave while they wait in the queue",
    ]
    assert all(row.good for row in rows[4:]), table(rows)
