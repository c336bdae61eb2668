"""A prompt that kills every worker that takes it."""

from __future__ import annotations

import asyncio

import aiohttp

from tests.chaos.bent import POISON
from tests.chaos.cell import Cell, Plan, cell
from tests.chaos.report import Row
from tests.chaos.scenarios.run import nothing_lost, under_load
from tests.rigs.load import MODEL

BENT = dict.fromkeys(("d0", "d1", "d2", "d3"), "tests.chaos.bent")


async def prompt(rate: float) -> list[Row]:
    settings = {"BATON_ROUTER__REMOTE_PREFILL": "never"}
    async with cell(Plan(prefill=0, decode=4, module=BENT, settings=settings)) as fleet:
        async with under_load(fleet, rate) as load:
            first = await send(fleet, POISON)
            deaths = len(fleet.deaths)
            again = await asyncio.gather(*[send(fleet, POISON) for _ in range(5)])
            looks = fleet.looks
            await fleet.until("deaths are counted", lambda: fleet.looks > looks + 1)
            later = len(fleet.deaths) - deaths
            rows = (await fleet.ctl("quarantine"))["prompts"]
            await fleet.until("all are back", fleet.all_ready, 60)
        return [
            Row("poison prompt: workers that died", str(deaths), "at most 3", 0 < deaths <= 3),
            Row("- its answer", str(first), "500", first == 500),
            Row(
                "- sent again 5 times",
                f"{later} deaths, answers {sorted(set(again))}, {len(rows)} in quarantine",
                "0 deaths, 500",
                later == 0 and set(again) == {500} and len(rows) == 1,
            ),
            nothing_lost("- the others", load.answers, 10),
        ]


async def send(fleet: Cell, ids: list[int]) -> int:
    """A completion of this prompt; returns the status of its answer."""
    body = {"model": MODEL, "prompt": ids, "max_tokens": 8}
    async with (
        aiohttp.ClientSession() as session,
        session.post(f"{fleet.url}/v1/completions", json=body) as answer,
    ):
        await answer.read()
        return answer.status
