"""A long time with stores on real vLLM: blocks are written behind, pulled, prefetched, read off
disks and pushed out, streams have copies at another worker, and workers are killed now and then.
Both tiers are far smaller than what is asked for, so that they are full all the time. One worker
lives as long as the fleet, so that its engine's memory can be judged.
"""

from __future__ import annotations

import asyncio
import random
import tempfile
import time
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass, field, replace
from itertools import cycle
from pathlib import Path

from common.errors import BatonError
from tests.chaos.actions import Kill, inflict
from tests.chaos.cell import READY_SECONDS_VLLM, Cell, cell
from tests.chaos.memory import Memory
from tests.chaos.progress import report
from tests.chaos.report import Row
from tests.chaos.scenarios import vllm
from tests.chaos.scenarios.run import every_kind, nothing_lost, under_load
from tests.rigs.load import Ask

RATE = 4.0
ASK = Ask(prompt_tokens=(200, 1_500), max_tokens=32, prompts=60, at_once=8)
DISK_MIB = 128
RESERVED = 1.1
"""A disk may take this many times what its blocks do: each has a header, each segment an end."""
FULL = 0.8
"""What is less full shows nothing of a bound."""
SETTINGS = {
    "BATON_ROUTER__REMOTE_PREFILL": "auto",
    "BATON_ENGINE__KV_CACHE_MIB": "48",
    "BATON_KV__STORE__RAM_MIB": "32",
    "BATON_KV__STORE__DISK_MIB": str(DISK_MIB),
    "BATON_KV__STORE__TTL_S": "120",
    "BATON_KV__CHECKPOINT__POLICY": "all",
    "ONEDNN_PRIMITIVE_CACHE_CAPACITY": "4",
    "LRU_CACHE_CAPACITY": "4",
}
"""The last two: torch keeps compiled kernels by the shape of a batch, up to 1,024 of them by
default, which looks like a leak for as long as new shapes come."""
WORKERS = ("p0", "d0", "d1")
KILLED, WATCHED = ("p0", "d0"), ("d1", "g0", "r0")
LOOK_SECONDS, KILL_SECONDS = 2.0, 90.0
COUNTED = ("written", "hits", "evicted", "expired", "damaged")


@dataclass
class Tiers:
    """What was seen of all stores, again and again."""

    looks: int = 0
    #: The largest share of its bound, by tier; of a disk also in bytes on the disk.
    fullest: dict[str, float] = field(default_factory=dict)
    #: What the tiers of each process counted, at its last look, by worker, tier, process and name.
    counts: dict[tuple[str, str, int, str], int] = field(default_factory=dict)
    off: set[str] = field(default_factory=set)

    async def watch(self, fleet: Cell, folder: Path) -> None:
        """Until it is cancelled."""
        while True:
            await asyncio.sleep(LOOK_SECONDS)
            for name in WORKERS:
                self._note("disk in bytes", bytes_on_disk(folder, name) / (DISK_MIB << 20))
            try:
                rows = await fleet.ctl("store")
            except BatonError:
                continue
            self.looks += 1
            for row in rows:
                self._note(row["tier"], row["blocks"] / row["blocks_max"])
                if row["state"] != "on":
                    self.off.add(f"{row['worker']}'s {row['tier']}")
                for name in COUNTED:
                    key = row["worker"], row["tier"], fleet.pid(row["worker"]), name
                    self.counts[key] = row[name]

    def _note(self, what: str, share: float) -> None:
        self.fullest[what] = max(self.fullest.get(what, 0.0), share)

    def rows(self) -> list[Row]:
        full = ", ".join(f"{what} {share:.2f}" for what, share in sorted(self.fullest.items()))
        bounds = {"ram": 1.0, "disk": 1.0, "disk in bytes": RESERVED}
        kept = all(FULL <= self.fullest.get(what, 0.0) <= most for what, most in bounds.items())
        total = Counter[str]()
        for (_, tier, _, name), count in self.counts.items():
            total[f"{tier} {name}"] += count
        used = all(total[f"{tier} {name}"] for tier in ("ram", "disk") for name in COUNTED[:3])
        damaged = total["ram damaged"] + total["disk damaged"]
        return [
            Row(
                f"- fullest of {self.looks} looks, of the bound",
                full,
                f"{FULL:g} to 1, in bytes to {RESERVED:g}",
                kept,
            ),
            Row(
                "- blocks",
                ", ".join(f"{count} {name}" for name, count in sorted(total.items())),
                "written, hit and pushed out in both tiers, none damaged",
                bool(used) and not damaged,
            ),
            Row("- disks given up", ", ".join(sorted(self.off)) or "none", "none", not self.off),
        ]


def bytes_on_disk(folder: Path, worker: str) -> int:
    """What a worker's files take. One that is removed meanwhile counts as nothing."""
    total = 0
    for path in folder.glob(f"{worker}.*/*"):
        with suppress(OSError):
            total += path.stat().st_blocks * 512
    return total


async def soak(minutes: float) -> list[Row]:
    test = f"{minutes:g} minutes of full stores"
    with tempfile.TemporaryDirectory() as folder:
        settings = {**vllm.PLAN.settings, **SETTINGS, "BATON_KV__STORE__PATH": folder}
        async with cell(replace(vllm.PLAN, settings=settings)) as fleet:
            tiers, memory = Tiers(), Memory(families=True)
            async with (
                under_load(fleet, RATE, ASK, running=1) as load,
                asyncio.TaskGroup() as beside,
            ):
                least = int(0.2 * minutes * 60 * RATE)
                watching = [
                    beside.create_task(tiers.watch(fleet, Path(folder))),
                    beside.create_task(memory.watch(fleet, WATCHED)),
                    beside.create_task(report(test, fleet, load, least)),
                ]
                kills = await kill_until(time.monotonic() + minutes * 60, fleet)
                for task in watching:
                    task.cancel()
            return [
                nothing_lost(test, load.answers, least),
                every_kind("- of them", load.answers),
                Row("- workers killed", str(kills), "one or more", kills > 0),
                *tiers.rows(),
                await nothing_held(fleet),
                *memory.rows(WATCHED),
            ]


async def kill_until(end: float, fleet: Cell) -> int:
    """How many. The next comes when all are ready."""
    chance, kills = random.Random(1), 0
    for name in cycle(KILLED):
        pause = chance.uniform(0.5, 1.5) * KILL_SECONDS
        await asyncio.sleep(max(0.0, min(pause, end - time.monotonic())))
        if time.monotonic() >= end:
            break
        await inflict(fleet, Kill(fleet, name))
        kills += 1
        await fleet.until("all are ready", fleet.all_ready, READY_SECONDS_VLLM)
    return kills


async def nothing_held(fleet: Cell) -> Row:
    """No KV waits for anybody, and no request runs, once the last answer was read."""
    held = "not looked"

    async def released() -> bool:
        nonlocal held
        kv, status = await fleet.ctl("kv"), await fleet.ctl("status")
        held = f"{kv['holds_total']} holds, {status['active']} requests"
        return not kv["holds_total"] and not status["active"]

    try:
        await fleet.until("nothing is held", released, 30.0)
    except AssertionError:
        return Row("- held at the end", held, "none", good=False)
    return Row("- held at the end", held, "none", good=True)
