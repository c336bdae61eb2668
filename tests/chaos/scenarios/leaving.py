"""Workers that are asked to leave: by SIGTERM with long streams on them, one after the other."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from functools import partial
from types import MappingProxyType

from common.net.admin_verbs import EVENTS_MAX
from tests.chaos.actions import Term, inflict
from tests.chaos.cell import Cell, Plan, cell
from tests.chaos.report import Row
from tests.chaos.scenarios.run import longest_gap, nothing_lost, under_load
from tests.rigs.load import Answer, Ask, Load
from tests.rigs.processes import BATON

DRAIN_MS = 3000
ROLES = ("prefill", "decode")
READY_AGAIN = ("worker.ready", "worker.trusted", "worker.resumed")
NOT_READY = ("worker.draining", "worker.drained", "worker.suspect", "worker.lost", "worker.left")
LONG = Ask(max_tokens=600)
DRAINED, DRAINED_SECONDS, PAUSE_SECONDS = 32, 2.0, 0.15


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
        quarantined = sum("is quarantined" in a.error for a in load.answers)
        return [
            nothing_lost("SIGTERM of a decode worker with long streams", load.answers, 10),
            Row("- exit status", f"{status} after {seconds:.1f} s", "0", status == 0),
            Row("- streams moved before the limit", str(moved), "1 or more", moved > 0),
            Row("- counted as deaths", str(quarantined), "0", quarantined == 0),
        ]


async def drained() -> list[Row]:
    """All streams run on one of two workers, which an operator drains."""
    async with cell(Plan(prefill=1, decode=2)) as fleet:
        load = Load(fleet.url, rate=1.0, ask=LONG)
        await fleet.ctl("drain", worker="d1")
        async with asyncio.TaskGroup() as streams:
            for _ in range(DRAINED):
                streams.create_task(load.one())
            await fleet.until("all stream", partial(_all_stream, load), 60)
            await fleet.ctl("resume", worker="d1")
            began = time.monotonic()
            await fleet.ctl("drain", worker="d0")
            seconds = await fleet.until("d0 is empty", partial(_is_empty, fleet, "d0"), 30)
        gaps = [answer.gap for answer in load.answers if answer.gap_at > began]
        return [
            nothing_lost(f"{DRAINED} streams leave a drained worker", load.answers, DRAINED),
            Row(
                "- left in",
                f"{seconds:.2f} s",
                f"at most {DRAINED_SECONDS:g} s",
                seconds <= DRAINED_SECONDS,
            ),
            longest_gap("- pause", gaps, PAUSE_SECONDS),
            await _computed_once(fleet, load.answers),
        ]


async def rollout(
    rate: float,
    workers: tuple[str, ...] = (),
    ask: Ask | None = None,
    settings: Mapping[str, str] = MappingProxyType({}),
) -> list[Row]:
    """`workers`: all when empty. With settings there is one decode worker more."""
    async with cell(Plan(prefill=2, decode=3 if settings else 2, settings=settings)) as fleet:
        before = {name: fleet.pid(name) for role in ROLES for name in fleet.names(role)}
        begun = await _last_event(fleet)
        async with under_load(fleet, rate, ask) as load:
            status, said = await _rollout(fleet, *workers, "--settle-seconds", "1")
        fewest = await _fewest_ready(fleet, begun)
        renewed = [name for name, pid in before.items() if fleet.pid(name) != pid]
        wanted = sorted(workers or before)
        kept = min(fewest.values())
        return [
            nothing_lost(f"rolling restart of {', '.join(wanted)}", load.answers, 20),
            Row(
                "- restarted",
                f"{', '.join(sorted(renewed))}; exit {status}",
                "all; exit 0",
                sorted(renewed) == wanted and status == 0,
            ),
            Row("- ready workers of a role, at least", str(kept), "1", kept >= 1),
            Row("- said", said.splitlines()[-1], "restarted: all", "restarted" in said),
            await _computed_once(fleet, load.answers),
        ]


async def rollout_stops(rate: float) -> list[Row]:
    """The first worker does not come back: nothing further is touched."""
    async with cell(Plan(prefill=2, decode=2)) as fleet:
        before = {name: fleet.pid(name) for role in ROLES for name in fleet.names(role)}
        fleet.left_down.add("p0")
        async with under_load(fleet, rate) as load:
            status, said = await _rollout(fleet, "--ready-seconds", "3")
        touched = [n for n, pid in before.items() if not fleet.runs(n) or fleet.pid(n) != pid]
        return [
            nothing_lost("rolling restart whose first worker stays away", load.answers, 10),
            Row(
                "- touched",
                f"{', '.join(touched)}; exit {status}",
                "p0; exit 1",
                touched == ["p0"] and status == 1,
            ),
            Row("- said", said.splitlines()[-2], "p0 is not there", "p0 is not there" in said),
        ]


async def _computed_once(fleet: Cell, answers: list[Answer]) -> Row:
    """Attempts that went on with the KV of the one before computed no prompt."""
    attempts = fleet.log("g0").count('"request.recovered"')
    moved = int((await fleet.ctl("status"))["totals"]["moved"])
    figure = f"{attempts - moved} of {len(answers)}, {moved} moved"
    return Row("- prompts computed twice", figure, "0", attempts == moved)


def _all_stream(load: Load) -> bool:
    return len([answer for answer in load.running.values() if answer.text]) == DRAINED


async def _is_empty(fleet: Cell, name: str) -> bool:
    return not (await fleet.workers())[name]["requests"]


async def _rollout(fleet: Cell, *arguments: str) -> tuple[int, str]:
    command = [*BATON, "rollout", "--run-dir", str(fleet.run_dir)]
    process = await asyncio.create_subprocess_exec(
        *command, *arguments, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT
    )
    said, _ = await process.communicate()
    return process.returncode or 0, said.decode()


async def _last_event(fleet: Cell) -> int:
    return int((await fleet.ctl("events", after=-1, limit=1))["last"])


async def _fewest_ready(fleet: Cell, after: int) -> dict[str, int]:
    """By role, since that event of the router, when all were ready. Its log misses no moment."""
    told = await fleet.ctl("events", after=after, limit=EVENTS_MAX)
    assert not told["missed"]
    ready = {role: set(fleet.names(role)) for role in ROLES}
    fewest = {role: len(names) for role, names in ready.items()}
    for event in told["events"]:
        if event["event"] not in READY_AGAIN + NOT_READY:
            continue
        role, name = event["sentence"].replace(" worker ", " ").split()[:2]
        if event["event"] in READY_AGAIN:
            ready[role].add(name)
        else:
            ready[role].discard(name)
            fewest[role] = min(fewest[role], len(ready[role]))
    return fewest


def _ended(fleet: Cell, pid: int) -> bool:
    return any(death.pid == pid for death in fleet.deaths)
