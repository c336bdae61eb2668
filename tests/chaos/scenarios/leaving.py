"""Workers that are asked to leave: by SIGTERM with long streams on them, one after the other."""

from __future__ import annotations

from functools import partial

from tests.chaos.actions import Term, inflict
from tests.chaos.cell import Cell, Plan, cell
from tests.chaos.load import Ask
from tests.chaos.report import Row
from tests.chaos.scenarios.run import nothing_lost, under_load

DRAIN_MS = 3000
LONG = Ask(max_tokens=600)


async def terminated(rate: float) -> list[Row]:
    """Streams are longer than the drain may take, so that what is left has to move."""
    plan = Plan(prefill=1, decode=2, settings={"BATON_FLEET__DRAIN_MS": str(DRAIN_MS)})
    async with cell(plan) as fleet:
        async with under_load(fleet, rate, LONG) as load:
            pid = fleet.pid("d0")
            await inflict(fleet, Term(fleet, "d0"))
            seconds = await fleet.until("d0 ends", partial(_ended, fleet, pid), 20)
            await fleet.until("d0 is back", fleet.all_ready, 60)
        status = next(death.status for death in fleet.deaths if death.pid == pid)
        moved = fleet.log("g0").count("request.recovered")
        quarantined = sum("died while they ran" in a.error for a in load.answers)
        return [
            nothing_lost("SIGTERM of a decode worker with long streams", load.answers, 10),
            Row("- exit status", f"{status} after {seconds:.1f} s", "0", status == 0),
            Row("- streams moved before the limit", str(moved), "1 or more", moved > 0),
            Row("- counted as deaths", str(quarantined), "0", quarantined == 0),
        ]


def _ended(fleet: Cell, pid: int) -> bool:
    return any(death.pid == pid for death in fleet.deaths)
