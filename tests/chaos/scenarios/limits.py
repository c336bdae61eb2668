"""Daemons without room: no byte left where they log, no memory left to grow."""

from __future__ import annotations

import asyncio

from tests.chaos.actions import FullDisk, Kill, Memory, MissedError, inflict
from tests.chaos.cell import Plan, cell
from tests.chaos.report import Row
from tests.chaos.scenarios.run import nothing_lost, under_load
from tests.rigs.load import Ask

SECONDS = 5.0


async def full_disk(rate: float) -> list[Row]:
    """A worker is started anew where it can write no line of its log."""
    test = "full disk under the logs"
    async with cell(Plan(prefill=2, decode=2)) as fleet:
        async with under_load(fleet, rate) as load:
            full = FullDisk(fleet, "d0")
            try:
                await inflict(fleet, full)
            except OSError as error:
                return [Row(test, str(error), "0 failed", None)]
            try:
                await inflict(fleet, Kill(fleet, "d0"))
                await fleet.until("d0 is back", fleet.all_ready, 60)
                await asyncio.sleep(SECONDS)
            finally:
                full.heal()
        return [nothing_lost(test, load.answers, 20)]


async def memory(rate: float) -> list[Row]:
    """A worker cannot grow by a page; it may die of it, its streams may not."""
    async with cell(Plan(prefill=2, decode=3)) as fleet:
        async with under_load(fleet, rate, Ask(prompt_tokens=(200, 900))) as load:
            pid = fleet.pid("d0")
            try:
                await inflict(fleet, Memory(fleet, "d0"))
            except MissedError as error:
                return [Row("memory limit", str(error), "0 failed", good=False)]
            await asyncio.sleep(SECONDS)
            died = any(death.pid == pid for death in fleet.deaths)
            await fleet.until("all are ready", fleet.all_ready, 60)
        end = "it died of it" if died else "it lived"
        return [nothing_lost(f"memory limit of a decode worker ({end})", load.answers, 20)]
