"""A cut of `make chaos`: workers of both roles are killed under load."""

from __future__ import annotations

import pytest

from tests.chaos.report import table
from tests.chaos.scenarios import deaths

pytestmark = [pytest.mark.slow, pytest.mark.timeout(180)]

KILLS = 3


async def test_killed_workers_cost_no_request_and_no_token() -> None:
    rows = await deaths.workers(KILLS, rate=10, least=100, settings=deaths.PATIENT)
    lost, _, left = rows
    assert lost.good, table(rows)
    assert left.good, table(rows)
