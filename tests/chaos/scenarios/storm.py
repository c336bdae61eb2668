"""Decode workers that are killed, stopped and terminated in quick succession, one or two at a time,
while poison may be about: nobody is lost for having been there."""

from __future__ import annotations

import asyncio
import random
import time
from collections import Counter

from tests.chaos.actions import Kill, Stop, Term, inflict
from tests.chaos.bent import POISON
from tests.chaos.cell import Cell, Plan, cell
from tests.chaos.report import Row
from tests.chaos.scenarios.deaths import PATIENT
from tests.chaos.scenarios.poison import send
from tests.chaos.scenarios.run import every_kind, nothing_lost, under_load
from tests.rigs.load import Ask

DECODES = ("d0", "d1", "d2", "d3")
ASK = Ask(prompt_tokens=(20, 300), max_tokens=100)
RATE = 8.0
"""70 % of what four decode workers hold, 4 x 4 requests of 1.4 s."""
SETTINGS = PATIENT | {
    "BATON_ENGINE__MAX_NUM_SEQS": "4",
    "BATON_ENGINE__SIM__DECODE_STEP_MS": "13",
    "BATON_FLEET__DRAIN_MS": "2000",
}
BETWEEN_SECONDS = (1.0, 4.0)
STOP_SECONDS = (2.0, 6.0)
POISON_DEATHS_MAX = 3
"""Two deaths and one trial (`services/router/fleet`), whatever else dies."""


async def over_decodes(seconds: float, seed: int = 1) -> list[Row]:
    async with cell(Plan(prefill=2, decode=4, settings=SETTINGS)) as fleet:
        struck = Counter[str]()
        async with under_load(fleet, RATE, ASK) as load:
            await _strike(fleet, time.monotonic() + seconds, random.Random(seed), struck)
        test = f"{seconds:g} s of kills, stops and terminations of one or two decode workers"
        kinds = ", ".join(f"{n} x {name}" for name, n in sorted(struck.items()))
        rows = (await fleet.ctl("quarantine"))["prompts"]
        return [
            nothing_lost(test, load.answers, int(RATE * seconds / 3), refusals=True),
            every_kind("- of them", load.answers),
            Row("- faults", kinds, "kill, stop and term", len(struck) == 3),
            Row("- prompts in quarantine", str(len(rows)), "0", not rows),
        ]


async def with_poison(seconds: float, seed: int = 2) -> list[Row]:
    """The workers that poison kills leave proof of it (`tests/chaos/bent.py`)."""
    bent = dict.fromkeys(DECODES, "tests.chaos.bent")
    settings = SETTINGS | {"BATON_ROUTER__REMOTE_PREFILL": "never"}
    async with cell(Plan(prefill=0, decode=4, module=bent, settings=settings)) as fleet:
        struck = Counter[str]()
        async with under_load(fleet, RATE / 2, ASK) as load, asyncio.TaskGroup() as beside:
            asked = beside.create_task(send(fleet, POISON))
            await _strike(fleet, time.monotonic() + seconds, random.Random(seed), struck)
        by_poison = sum(p.stat().st_size for p in fleet.run_dir.glob("poisoned-*"))
        return [
            nothing_lost("the same with poison: the others", load.answers, 10, refusals=True),
            Row(
                "- workers that poison killed, and its answer",
                f"{by_poison}, {asked.result()}",
                f"1 to {POISON_DEATHS_MAX}, 500",
                0 < by_poison <= POISON_DEATHS_MAX and asked.result() == 500,
            ),
        ]


async def _strike(fleet: Cell, end: float, chance: random.Random, struck: Counter[str]) -> None:
    while time.monotonic() < end:
        kind = chance.choice((Kill, Stop, Term))
        rows = await fleet.workers()
        ready = [n for n in DECODES if n in rows and rows[n]["state"] == "ready" and fleet.runs(n)]
        names = chance.sample(ready, min(len(ready), chance.choice((1, 2))))
        faults = [kind(fleet, name) for name in names]
        await asyncio.gather(*[inflict(fleet, fault, 10.0) for fault in faults])
        struck[kind.__name__.lower()] += len(faults)
        if kind is Stop:
            await asyncio.sleep(chance.uniform(*STOP_SECONDS))
        for fault in faults:
            if isinstance(fault, Stop):
                fault.heal()
        await asyncio.sleep(chance.uniform(*BETWEEN_SECONDS))
