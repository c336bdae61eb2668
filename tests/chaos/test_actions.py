"""Every fault proves that it took effect; one gone astray is noticed."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.chaos.actions import Bend, FullDisk, Hold, Kill, Memory, MissedError, Stop, Term, inflict
from tests.chaos.cell import Cell, Plan, cell
from tests.chaos.scenarios.run import under_load

pytestmark = [pytest.mark.long, pytest.mark.timeout(180)]

PLAN = Plan(
    prefill=2,
    decode=2,
    tapped=("d0", "d1"),
    module={"p0": "tests.chaos.bent", "p1": "tests.chaos.bent"},
)
MISS_SECONDS = 0.7


async def mended(action: object) -> None:
    if isinstance(action, Bend | FullDisk | Hold | Stop):
        action.heal()


async def test_a_fault_takes_effect_where_it_is_aimed_and_is_missed_elsewhere() -> None:
    actions: list[Callable[[Cell, str], Bend | FullDisk | Hold | Memory | Stop | Term | Kill]] = [
        lambda fleet, aim: Stop(fleet, "d0", aim),
        lambda fleet, aim: Hold(fleet, "d0", aim),
        lambda fleet, aim: Hold(fleet, "d0", aim, delay=0.05),
        lambda fleet, aim: Bend(fleet, "p0", "delay", aim.replace("d", "p")),
        lambda fleet, aim: Memory(fleet, "d0", aim, spare=1 << 30),
        lambda fleet, aim: Term(fleet, "d0", aim),
        lambda fleet, aim: Kill(fleet, "d0", aim),
    ]
    async with cell(PLAN) as fleet, under_load(fleet, 8):
        for make in actions:
            missed = make(fleet, "d1")
            with pytest.raises(MissedError, match="took no effect"):
                await inflict(fleet, missed, MISS_SECONDS)
            await mended(missed)
            await fleet.until("all are back", fleet.all_ready, 60)
            hit = make(fleet, "")
            await inflict(fleet, hit)
            await mended(hit)
            await fleet.until("all are back", fleet.all_ready, 60)
