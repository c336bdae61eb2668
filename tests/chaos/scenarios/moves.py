"""Streams move and are parked while workers and both routers are killed and messages are lost."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from functools import partial

from tests.chaos.actions import Bend, Hold, Kill, MissedError, inflict
from tests.chaos.cell import Cell, Plan, cell
from tests.chaos.progress import report
from tests.chaos.report import Row
from tests.chaos.scenarios.deaths import LOADED, READY_SECONDS
from tests.chaos.scenarios.run import every_kind, nothing_lost, under_load
from tests.rigs.load import Ask

RATE = 12.0
ASK = Ask(prompt_tokens=(20, 300), max_tokens=64, at_once=20)
ROUTERS = ("r0", "r1")
DECODES = ("d0", "d1", "d2")
STRUCK = ("killed", "router killed", "KV lost", "cut off", "drained")
MOVE_SECONDS = (0.05, 0.3)
DRAIN_SECONDS = (1.0, 3.0)
FAULT_SECONDS = (2.0, 5.0)
PLAN = Plan(
    prefill=2,
    decode=3,
    routers=2,
    tapped=("d0",),
    module={"p1": "tests.chaos.bent"},
    settings=LOADED
    | {
        # Where KV is to be full, nobody is refused because it nearly is.
        "BATON_ROUTER__ADMISSION__KV_REFUSE": "1.0",
        # Two blocks at a time, where the longest requests need 22. A worker has KV for six streams
        # of average length and slots for eight.
        "BATON_LIMITS__KV_BUDGET_MIB": "0.03125",
        "BATON_ENGINE__BLOCK_TOKENS": "16",
        "BATON_ENGINE__SIM__KV_BLOCKS": "80",
        "BATON_ENGINE__SIM__DECODE_STEP_MS": "13",
    },
)


async def everywhere(least: int) -> list[Row]:
    """`least`: how many requests there are at least; each fault comes more than once."""
    async with cell(PLAN) as fleet:
        done = Counter[str]()
        async with under_load(fleet, RATE, ASK) as load, asyncio.TaskGroup() as beside:
            tasks = [
                beside.create_task(report("moves", fleet, load, least)),
                beside.create_task(_move_streams(fleet, done)),
                beside.create_task(_drain_workers(fleet, done)),
                beside.create_task(_strike(fleet, done)),
            ]
            await fleet.until(
                "enough were asked and struck",
                lambda: load.started >= least and all(done[name] > 1 for name in STRUCK),
                600 + least,
            )
            for task in tasks:
                task.cancel()
        await fleet.until("all are ready", fleet.all_ready, READY_SECONDS)
        for router in ROUTERS:
            done["moved"] += await _moved(fleet, router)
            done["parked"] += fleet.log(router).count("request.parked")
        test = f"moves, parks, kills and lost messages, {RATE:g} requests/s, two routers"
        wanted = ("moved", "parked", *STRUCK)
        return [
            nothing_lost(test, load.answers, least),
            every_kind("- of them", load.answers),
            Row(
                "- meanwhile",
                ", ".join(f"{done[name]} {name}" for name in wanted),
                "each more than once",
                all(done[name] > 1 for name in wanted),
            ),
            await _nothing_held(fleet),
        ]


async def _move_streams(fleet: Cell, done: Counter[str]) -> None:
    """An operator moves one stream after another; whether it can be is the router's to say."""
    chance = random.Random("moves")
    while True:
        await asyncio.sleep(chance.uniform(*MOVE_SECONDS))
        router = chance.choice(ROUTERS)
        streams = [row for row in await fleet.told(router, "requests") or () if row.get("decode")]
        if streams:
            row = chance.choice(streams)
            to = chance.choice([name for name in DECODES if name != row["decode"]])
            ordered = await fleet.told(router, "move", request=row["request_id"], to=to)
            done["ordered"] += ordered is not None


async def _drain_workers(fleet: Cell, done: Counter[str]) -> None:
    """One at a time is drained and resumed, at both routers."""
    chance = random.Random("drains")
    while True:
        await asyncio.sleep(chance.uniform(*DRAIN_SECONDS))
        name = chance.choice(DECODES)
        for verb in ("drain", "resume"):
            for router in ROUTERS:
                done["drained"] += (await fleet.told(router, verb, worker=name)) is not None
            await asyncio.sleep(chance.uniform(*DRAIN_SECONDS))


async def _strike(fleet: Cell, done: Counter[str]) -> None:
    """One fault at a time, so that those who can serve are never none."""
    chance, faults = random.Random("faults"), [_kill_worker, _kill_router, _lose_kv, _cut_off]
    while True:
        chance.shuffle(faults)
        for fault in faults:
            await fault(fleet, chance, done)
            await fleet.until("all are ready", fleet.all_ready, READY_SECONDS)


async def _kill_worker(fleet: Cell, chance: random.Random, done: Counter[str]) -> None:
    await inflict(fleet, Kill(fleet, chance.choice(("p0", *DECODES))))
    done["killed"] += 1
    await asyncio.sleep(chance.uniform(*FAULT_SECONDS))


async def _kill_router(fleet: Cell, chance: random.Random, done: Counter[str]) -> None:
    router = chance.choice(ROUTERS)
    done["moved"] += await _moved(fleet, router)
    await inflict(fleet, Kill(fleet, router))
    done["router killed"] += 1
    await fleet.until(f"{router} is back", partial(_knows_all, fleet, router), READY_SECONDS)


async def _lose_kv(fleet: Cell, chance: random.Random, done: Counter[str]) -> None:
    lost = Bend(fleet, "p1", "drop")
    try:
        await inflict(fleet, lost, 10.0)
        await asyncio.sleep(chance.uniform(*FAULT_SECONDS))
        done["KV lost"] += 1
    except MissedError:
        done["KV not lost"] += 1  # all prompts were computed elsewhere meanwhile
    finally:
        lost.heal()
    for router in ROUTERS:
        await fleet.told(router, "quarantine", action="clear")


async def _cut_off(fleet: Cell, chance: random.Random, done: Counter[str]) -> None:
    held = Hold(fleet, "d0")
    try:
        await inflict(fleet, held, 10.0)
        await asyncio.sleep(chance.uniform(*FAULT_SECONDS))
        done["cut off"] += 1
    finally:
        held.heal()


async def _knows_all(fleet: Cell, router: str) -> bool:
    rows = await fleet.told(router, "workers") or ()
    ready = [row for row in rows if row["state"] == "ready"]
    return len(ready) == PLAN.prefill + PLAN.decode


async def _moved(fleet: Cell, router: str) -> int:
    """Streams that this router had moved since it started."""
    status = await fleet.told(router, "status")
    return int(status["totals"]["moved"]) if status else 0


async def _nothing_held(fleet: Cell) -> Row:
    async def idle() -> bool:
        for router in ROUTERS:
            rows, told = await fleet.told(router, "workers"), await fleet.told(router, "kv")
            if not rows or told is None or told["holds_total"]:
                return False
            if any(row["requests"] or row["kv_used"] for row in rows if row["state"] != "gone"):
                return False
        return True

    seconds = await fleet.until("nothing is held", idle, 60)
    figure = f"nothing, {seconds:.1f} s after the last answer"
    return Row("- left behind", figure, "nothing", good=True)
