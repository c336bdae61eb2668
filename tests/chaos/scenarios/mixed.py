"""A long time of every kind of fault, one after the other, while memory is watched.

Faults that end a process hit the workers in `MORTAL`, and now and then the router; those that it
outlives hit the others, which therefore live long enough to show a slope.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections import Counter
from collections.abc import Awaitable, Callable

from tests.chaos.actions import Bend, Hold, Kill, Stop, Term, inflict
from tests.chaos.cell import Cell, Plan, cell
from tests.chaos.memory import Memory
from tests.chaos.progress import report
from tests.chaos.report import Row
from tests.chaos.scenarios.deaths import PATIENT
from tests.chaos.scenarios.run import every_kind, nothing_lost, under_load
from tests.rigs.load import Ask

RATE = 10.0
ASK = Ask(prompt_tokens=(20, 500), max_tokens=32)
FAULT_SECONDS = (3.0, 8.0)
BETWEEN_SECONDS = (2.0, 8.0)
READY_SECONDS = 90.0
LASTING = ("p0", "d0", "g0", "r0")
MORTAL = ("p1", "d1", "d2")
PLAN = Plan(
    prefill=2,
    decode=3,
    settings=PATIENT,
    tapped=("d0", "p0"),
    module=dict.fromkeys(("p0", "p1"), "tests.chaos.bent"),
)

Fault = Callable[[Cell, random.Random], Awaitable[str]]


async def _killed(fleet: Cell, chance: random.Random) -> str:
    name = chance.choice(MORTAL)
    await inflict(fleet, Kill(fleet, name))
    return f"kill {name}"


async def _ended(fleet: Cell, chance: random.Random) -> str:
    name = chance.choice(MORTAL)
    pid = fleet.pid(name)
    await inflict(fleet, Term(fleet, name))
    await fleet.until(f"{name} ends", lambda: any(d.pid == pid for d in fleet.deaths), 60)
    return f"term {name}"


async def _router_killed(fleet: Cell, _: random.Random) -> str:
    await inflict(fleet, Kill(fleet, "r0"))
    return "kill r0"


async def _lasts(fleet: Cell, chance: random.Random, fault: Stop | Hold | Bend) -> str:
    await inflict(fleet, fault, 10.0)
    await asyncio.sleep(chance.uniform(*FAULT_SECONDS))
    fault.heal()
    return fault.name


async def _stopped(fleet: Cell, chance: random.Random) -> str:
    return await _lasts(fleet, chance, Stop(fleet, chance.choice(("p0", "d0", "d1"))))


async def _cut_off(fleet: Cell, chance: random.Random) -> str:
    return await _lasts(fleet, chance, Hold(fleet, chance.choice(("p0", "d0"))))


async def _bent(fleet: Cell, chance: random.Random) -> str:
    how = chance.choice(("flip", "delay", "reset", "mute"))
    said = await _lasts(fleet, chance, Bend(fleet, chance.choice(("p0", "p1")), how))
    await fleet.ctl("quarantine", action="clear")
    return said


FAULTS: tuple[tuple[Fault, int], ...] = (
    (_killed, 6),
    (_ended, 3),
    (_stopped, 4),
    (_cut_off, 3),
    (_bent, 6),
    (_router_killed, 1),
)


async def soak(minutes: float, seed: int = 1) -> list[Row]:
    async with cell(PLAN) as fleet:
        memory, struck = Memory(), Counter[str]()
        async with under_load(fleet, RATE, ASK) as load, asyncio.TaskGroup() as beside:
            test = f"{minutes:g} minutes of mixed faults"
            least = int(0.9 * minutes * 60 * RATE)
            watching = beside.create_task(memory.watch(fleet, (*LASTING, *MORTAL)))
            telling = beside.create_task(report(test, fleet, load, least))
            await _strike_until(time.monotonic() + minutes * 60, fleet, seed, struck)
            telling.cancel()
            watching.cancel()
        kinds = ", ".join(f"{n} x {name}" for name, n in sorted(struck.items()))
        return [
            nothing_lost(test, load.answers, least),
            every_kind("- of them", load.answers),
            Row("- faults", kinds, "3 or more kinds", len(struck) >= 3),
            *memory.rows((*LASTING, *MORTAL)),
        ]


async def _strike_until(end: float, fleet: Cell, seed: int, struck: Counter[str]) -> None:
    """The next fault comes when the last is mended and all are trusted."""
    chance = random.Random(seed)
    faults, weights = zip(*FAULTS, strict=True)
    while time.monotonic() < end:
        (fault,) = chance.choices(faults, weights)
        struck[await fault(fleet, chance)] += 1
        await fleet.until("all are ready", fleet.all_ready, READY_SECONDS)
        await asyncio.sleep(chance.uniform(*BETWEEN_SECONDS))
