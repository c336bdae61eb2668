"""KV that is damaged on its way costs no client a token, and the router says so: in status, metrics
and events, until it is over."""

from __future__ import annotations

from typing import Any

import pytest

from services.ctl.verbs.status import render
from services.health.metrics.scrape import scrape
from tests.chaos.actions import Bend, inflict
from tests.chaos.cell import Cell, Plan, cell
from tests.chaos.scenarios.run import under_load
from tests.rigs.load import Ask, faults_of

pytestmark = pytest.mark.timeout(120)

LONG = Ask(prompt_tokens=(200, 500), max_tokens=4)
PLAN = Plan(
    prefill=1,
    decode=1,
    module={"p0": "tests.chaos.bent"},
    settings={
        "BATON_ROUTER__DEGRADATION__WINDOW_MS": "3000",
        "BATON_ROUTER__DEGRADATION__HANDOFFS_MIN": "5",
    },
)


async def test_damaged_kv_raises_alarms_that_end_with_it() -> None:
    async with cell(PLAN) as fleet, under_load(fleet, 10, LONG, running=1) as load:
        await fleet.until("handoffs are counted", lambda: counted(fleet, "handoffs_total", 5))
        assert await alarms(fleet) == {}
        damage = Bend(fleet, "p0", "flip")
        await inflict(fleet, damage)
        await fleet.until("both are told", lambda: stand(fleet, {"digest", "recomputed"}))
        told = await fleet.ctl("status")
        assert "ALARM digest" in render(told)
        assert (
            "most by d0"
            in {alarm["cause"]: alarm for alarm in told["alarms"]}["digest"]["sentence"]
        )
        for cause in ("digest", "recomputed"):
            assert await metric(fleet, "degraded", f'cause="{cause}"') == 1.0
            assert await metric(fleet, "degradations_total", f'cause="{cause}"') >= 1.0
        assert await metric(fleet, "handoffs_recomputed_total") >= 1.0
        damage.heal()
        await fleet.ctl("quarantine", action="clear")
        await fleet.until("both are over", lambda: stand(fleet, set()), 30)
        events = [event["event"] for event in (await fleet.ctl("events"))["events"]]
        assert events.count("degradation.raised") >= 2
        assert events.count("degradation.raised") == events.count("degradation.cleared")
    assert faults_of(load.answers) == []


async def alarms(fleet: Cell) -> dict[str, Any]:
    return {alarm["cause"]: alarm for alarm in (await fleet.ctl("status"))["alarms"]}


async def stand(fleet: Cell, causes: set[str]) -> bool:
    return set(await alarms(fleet)) == causes


async def metric(fleet: Cell, name: str, label: str = "") -> float:
    """Of the one model, on the router's page."""
    pages, _ = await scrape(fleet.run_dir)
    start = f"baton_router_{name}{{"
    values = [
        float(line.rpartition(" ")[2])
        for line in pages["router", "r0"].splitlines()
        if line.startswith(start) and label in line
    ]
    assert len(values) == 1, (name, values)
    return values[0]


async def counted(fleet: Cell, name: str, least: int) -> bool:
    return await metric(fleet, name) >= least
