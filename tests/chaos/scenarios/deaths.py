"""Daemons are killed with SIGKILL, one of each role or many, and started again."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Mapping
from functools import partial

from common.errors import BatonError
from tests.chaos.actions import Kill, inflict
from tests.chaos.cell import Cell, Plan, cell
from tests.chaos.progress import report
from tests.chaos.report import Row
from tests.chaos.scenarios.run import (
    every_kind,
    gaps_after,
    longest_gap,
    nothing_lost,
    under_load,
)
from tests.rigs.load import Ask

READY_SECONDS = 60.0
STREAMS_PAUSED_MIN = 3


N_PLUS_ONE = {"BATON_ROUTER__ADMISSION__CAPACITY_FULL": "0.6"}
"""Two decode workers of three are all that these loads need, so admission is not to be thinned when
one is away."""
SEATS = N_PLUS_ONE | {"BATON_ENGINE__MAX_NUM_SEQS": "16"}
PATIENT = {
    "BATON_ROUTER__ADMISSION__DECODE_QUEUE_OVERDUE_MS": "30000",
    "BATON_GATEWAY__ROUTER_WAIT_MS": "30000",
}
"""For a machine that is busy with other things: no refusal of what waits long for a worker."""
SHORT = Ask(prompt_tokens=(20, 300), max_tokens=16, at_once=64)
LOADED = PATIENT | {
    **N_PLUS_ONE,
    "BATON_ENGINE__MAX_NUM_SEQS": "8",
    "BATON_ENGINE__SIM__DECODE_STEP_MS": "26",
    "BATON_ENGINE__SIM__PREFILL_TOKENS_PER_S": "5500",
}
LOADED_RATE = 24.0
"""Of `SHORT` requests a second: 70 % of what one prefill worker computes (5,500 / 160) and of what
two decode workers hold (2 x 8 / 0.47 s), that is, of the fleet with one of each down."""
LOADED_LONG, LOADED_LONG_RATE = Ask(prompt_tokens=(20, 300), max_tokens=160, at_once=64), 2.7
"""The same share of what two decode workers hold (2 x 8 / 4.2 s), by streams that last."""


async def workers(
    kills: int,
    rate: float,
    least: int,
    settings: Mapping[str, str] = SEATS,
    ask: Ask | None = None,
) -> list[Row]:
    """Both roles, one worker of each down at a time; N+1 of each. Deaths come by chance over the
    whole load, as they do in a fleet: a role's next one is not its last one's aftermath."""
    apart = least / rate / kills
    async with cell(Plan(prefill=2, decode=3, settings=settings)) as fleet:
        async with under_load(fleet, rate, ask) as load, asyncio.TaskGroup() as beside:
            telling = beside.create_task(report("kills", fleet, load, least))
            async with asyncio.TaskGroup() as group:
                for role in ("prefill", "decode"):
                    group.create_task(_kill_often(fleet, role, kills, apart))
            await fleet.until("enough were asked", lambda: load.started >= least, 1800)
            telling.cancel()
        at = [death.at for death in fleet.deaths if death.name.startswith("d")]
        test = f"kill -9 prefill and decode workers, {kills} times each, {rate:g} requests/s"
        return [
            nothing_lost(test, load.answers, least),
            every_kind("- of them", load.answers),
            longest_gap(
                "- gap when its decode worker dies", gaps_after(load.answers, at), 1.0, 0.99
            ),
            await _leaks("- left behind on workers", fleet),
        ]


async def _kill_often(fleet: Cell, role: str, kills: int, apart: float) -> None:
    """Poisson deaths, `apart` seconds in the mean, but none before the last victim is back."""
    chance = random.Random(role)
    due = time.monotonic()
    for _ in range(kills):
        due += chance.expovariate(1 / apart)
        await asyncio.sleep(max(0.0, due - time.monotonic()))
        name = chance.choice(fleet.names(role))
        kill = Kill(fleet, name)
        await inflict(fleet, kill)
        await fleet.until(f"{name} is back", partial(_ready, fleet, name, kill.pid), READY_SECONDS)


async def _ready(fleet: Cell, name: str, old_pid: int) -> bool:
    """The process that took its place, not the one that the router has yet to miss. A router too
    busy to answer is asked again."""
    try:
        row = (await fleet.workers()).get(name)
    except BatonError:
        return False
    return row is not None and row["state"] == "ready" and row["pid"] != old_pid


async def _leaks(test: str, fleet: Cell) -> Row:
    async def idle() -> bool:
        rows = (await fleet.workers()).values()
        return all(not row["requests"] and row["kv_used"] == 0.0 for row in rows)

    seconds = await fleet.until("workers are empty", idle, 60)
    return Row(test, f"nothing, {seconds:.1f} s after the last answer", "nothing", good=True)


async def only_prefill(rate: float) -> list[Row]:
    async with cell(Plan(prefill=1, decode=2)) as fleet:
        async with under_load(fleet, rate) as load:
            fleet.left_down.add("p0")
            await inflict(fleet, Kill(fleet, "p0"))
            begun = load.started
            await fleet.until("more were asked", lambda: load.started >= begun + 40, 60)
            counts = await fleet.ctl("status")
            fleet.left_down.clear()
            await fleet.until("p0 is back", fleet.all_ready, READY_SECONDS)
        local = counts["totals"]["placed_local"]
        return [
            nothing_lost("kill the only prefill worker", load.answers, 40),
            Row("- prompts computed by decode workers", str(local), "20 or more", local >= 20),
        ]


async def only_decode(rate: float) -> list[Row]:
    ask = Ask(max_tokens=150)
    async with cell(Plan(prefill=1, decode=1)) as fleet:
        async with under_load(fleet, rate, ask) as load:
            at = time.monotonic()
            await inflict(fleet, Kill(fleet, "d0"))
            await fleet.until("d0 is back", fleet.all_ready, READY_SECONDS)
            down = time.monotonic() - at
            begun = load.started
            await fleet.until("more were asked", lambda: load.started >= begun + 10, 60)
        gaps = gaps_after(load.answers, [at + 0.01])
        test = f"kill the only decode worker, back after {down:.1f} s"
        return [
            nothing_lost(test, load.answers, 15, refusals=True),
            Row(
                "- streams that paused",
                f"{len(gaps)}",
                f"{STREAMS_PAUSED_MIN} or more",
                len(gaps) >= STREAMS_PAUSED_MIN,
            ),
        ]


async def router(rate: float) -> list[Row]:
    async with cell(Plan(prefill=2, decode=2, settings=PATIENT)) as fleet:
        async with under_load(fleet, rate, Ask(max_tokens=100)) as load:
            await inflict(fleet, Kill(fleet, "r0"))
            down = time.monotonic()
            again = await fleet.until("the router serves", fleet.all_ready, READY_SECONDS)
            begun = load.started
            await fleet.until("more were asked", lambda: load.started >= begun + 20, 60)
        waited = _ready_after_start(fleet.log("r0"))
        late = max((a.first - a.began for a in load.answers if a.began > down - 1), default=0.0)
        return [
            nothing_lost("kill the router under load", load.answers, 25),
            Row(
                "- ready after its start",
                f"{waited:.1f} s ({again:.1f} s after the kill; longest TTFT {late:.1f} s)",
                "at most 2 s",
                waited <= 2.0,
            ),
        ]


def _ready_after_start(log: str) -> float:
    line = [line for line in log.splitlines() if "placing begins" in line][-1]
    return float(line.split("placing begins ")[1].split(" s")[0])


async def gateway(rate: float) -> list[Row]:
    async with cell(Plan(prefill=1, decode=2, gateways=2)) as fleet:
        async with under_load(fleet, rate, Ask(max_tokens=200), running=12) as load:
            fleet.left_down.add("g1")
            before = load.started
            held = {row["request_id"]: row["gateway"] for row in await fleet.ctl("requests")}
            mine = sum(name == "g1" for name in held.values())
            await inflict(fleet, Kill(fleet, "g1"))
            killed = time.monotonic()

            async def freed() -> bool:
                rows = await fleet.ctl("requests")
                return not any(row["gateway"] == "g1" for row in rows)

            seconds = await fleet.until("its orphans are dropped", freed, 10)
            await fleet.until("more were asked", lambda: load.started >= before + 10, 60)
        lost = [a for a in load.answers if a.fault]
        theirs = [a for a in lost if a.began < killed]
        return [
            Row(
                "kill one of two gateways",
                f"{len(theirs)} streams ended of {len(held)} running, {mine} of them its own; "
                f"{len(lost) - len(theirs)} later ones failed",
                "only its own",
                0 < len(theirs) <= mine + 2 and len(lost) == len(theirs),
            ),
            Row("- its orphans are free", f"{seconds:.2f} s", "at most 3 s", seconds <= 3.0),
        ]
