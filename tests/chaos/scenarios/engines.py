"""An engine dies or hangs while its daemon lives: the daemon ends and says why."""

from __future__ import annotations

import json
import time

from tests.chaos.actions import Bend, inflict
from tests.chaos.cell import Cell, Plan, cell
from tests.chaos.report import Row
from tests.chaos.scenarios.run import gaps_after, longest_gap, nothing_lost, under_load
from tests.rigs.load import Ask

HANG_MS = "2000"
LEAST = 20
"""Requests, however soon the worker is back."""
SAYS = {"die": "the engine process has died", "hang": "made no step for"}


async def lost(how: str, rate: float) -> list[Row]:
    plan = Plan(
        prefill=1,
        decode=3,
        settings={"BATON_ENGINE__HANG_MS": HANG_MS},
        module={"d0": "tests.chaos.bent"},
    )
    async with cell(plan) as fleet:
        async with under_load(fleet, rate, Ask(max_tokens=100)) as load:
            pid = fleet.pid("d0")
            await inflict(fleet, Bend(fleet, "d0", how))
            at = time.monotonic()
            took = await fleet.until("its daemon ends", lambda: _ended(fleet, pid), 20)
            await fleet.until("d0 is back", fleet.all_ready, 60)
            await fleet.until("enough were asked", lambda: load.started >= LEAST, 60)
        status = next(death.status for death in fleet.deaths if death.pid == pid)
        said = last_words(fleet.log("d0"))
        good = status == 1 and SAYS[how] in said
        return [
            nothing_lost(f"an engine is made to {how}", load.answers, LEAST),
            Row("- its daemon ends", f"status {status} after {took:.1f} s: {said}", "1", good),
            longest_gap("- longest pause in a stream", gaps_after(load.answers, [at]), 2.0),
        ]


def _ended(fleet: Cell, pid: int) -> bool:
    return any(death.pid == pid for death in fleet.deaths)


def last_words(log: str) -> str:
    """The one line in which a daemon says why it ends."""
    failures = [json.loads(line) for line in log.splitlines() if '"daemon.failed"' in line]
    assert len(failures) == 1, failures
    return str(failures[0]["sentence"])
