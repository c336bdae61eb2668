"""What prefetching for the queue gives where prefixes lie on a slow disk, and what it costs where
nothing is stored: `[router] prefetch_queued` 5 against 0, in turns, real vLLM.

One worker computes its prompts itself, one request at a time, and `CLIENTS` clients ask again as
soon as they are answered, so that most of them wait in the router's queue. Each prompt begins with
one of `PREFIXES` texts in turn, of 30 MiB of KV, of which the worker's engine and its memory hold a
third each and its disk all; the disk reads 200 MB/s (`slow_disk.py`). Each turn has its own fleet
over the same disk, so that memory begins empty and the router learns by name what lies there.
"""

from __future__ import annotations

import asyncio
import random
import statistics
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import cycle, islice
from pathlib import Path

import aiohttp

from common.model.embedded import ensure_embedded_model
from tests.bench.moves import RECIPE, text
from tests.chaos.cell import Cell, Plan, cell
from tests.rigs.load import percentile

PREFIX, TAIL, OUTPUT = 2_000, 50, 48
PREFIXES, CLIENTS, REQUESTS, TURNS = 18, 8, 36, 4
MODES = {"prefetched": "5", "not": "0"}
SETTINGS = {
    "BATON_ROUTER__MODE": "replicated",
    "BATON_ROUTER__ADMISSION__DECODE_QUEUE_OVERDUE_MS": "60000",
    "BATON_ROUTER__LIVENESS__STALL_MS": "20000",
    "BATON_ENGINE__MAX_NUM_SEQS": "1",
    "BATON_ENGINE__KV_CACHE_MIB": "192",
    "BATON_KV__STORE__RAM_MIB": "192",
    "BATON_KV__STORE__DISK_MIB": "3072",
    "BATON_KV__STORE__DISK_WRITE_MIB_S": "1024",
    "BATON_KV__STORE__TTL_S": "3600",
}
COUNTS = ("prefetched", "prefetch_used", "prefetch_wasted", "prefetch_late", "store_disk_read")


@dataclass
class Found:
    """Of one mode: seconds until the first token, and blocks."""

    stored: list[float] = field(default_factory=list)
    cold: list[float] = field(default_factory=list)
    blocks: dict[str, float] = field(default_factory=lambda: dict.fromkeys(COUNTS, 0.0))


def main() -> None:
    found = {mode: Found() for mode in MODES}
    with tempfile.TemporaryDirectory() as folder:
        model = ensure_embedded_model(Path(folder) / "model", RECIPE)
        settings = SETTINGS | {
            "BATON_MODEL__PATH": str(model),
            "BATON_MODEL__NAME": "m",
            "BATON_KV__STORE__PATH": str(Path(folder) / "kv"),
        }
        asyncio.run(fill(settings))
        for turn in range(TURNS):
            for mode in list(MODES)[:: -1 if turn % 2 else 1]:
                queued = {"BATON_ROUTER__PREFETCH_QUEUED": MODES[mode]}
                asyncio.run(measure(settings | queued, found[mode], turn))
                print(f"turn {turn + 1} of {TURNS}, {mode}: done", flush=True)
    for mode, row in found.items():
        print(
            f"{mode}: first token of stored prefixes p50 {percentile(row.stored, 0.5):.2f}, p99 "
            f"{percentile(row.stored, 0.99):.2f} s; where all is cold p50 "
            f"{percentile(row.cold, 0.5):.2f} s; blocks: "
            + ", ".join(f"{name} {count:.0f}" for name, count in row.blocks.items())
        )
    on, off = found["prefetched"], found["not"]
    for what, share in (("p50", 0.5), ("p99", 0.99)):
        print(f"{what}: ratio {percentile(on.stored, share) / percentile(off.stored, share):.2f}")
    print(f"cold: ratio {statistics.median(on.cold) / statistics.median(off.cold):.3f}")
    print(f"used: {on.blocks['prefetch_used'] / max(1.0, on.blocks['prefetched']):.0%}")


def plan(settings: dict[str, str]) -> Plan:
    modules = {"d0": "tests.bench.slow_disk"}
    return Plan(prefill=0, decode=1, engine="vllm", settings=settings, module=modules)


def prefixes() -> list[list[int]]:
    draw = random.Random("prefixes")
    return [text(draw, PREFIX) for _ in range(PREFIXES)]


async def fill(settings: dict[str, str]) -> None:
    """Every prefix is computed once, and written to the disk."""
    async with cell(plan(settings)) as fleet:
        await ask_all(fleet, iter(prefixes()))
        blocks = PREFIXES * (PREFIX // 128)
        written = "the prefixes are on the disk"
        await fleet.until(written, lambda: counted(fleet, "store_disk_written", blocks), 120)


async def counted(fleet: Cell, name: str, least: float) -> bool:
    return (await counts(fleet, (name,)))[name] >= least


async def measure(settings: dict[str, str], row: Found, turn: int) -> None:
    async with cell(plan(settings)) as fleet:
        draw = random.Random(turn)
        stored = islice(cycle(prefixes()), REQUESTS)
        row.stored += await ask_all(fleet, (prefix + text(draw, TAIL) for prefix in stored))
        for name, count in (await counts(fleet, COUNTS)).items():
            row.blocks[name] += count
        draw = random.Random(f"cold {turn} {settings['BATON_ROUTER__PREFETCH_QUEUED']}")
        row.cold += await ask_all(fleet, (text(draw, PREFIX + TAIL) for _ in range(REQUESTS // 2)))


async def ask_all(fleet: Cell, prompts: Iterator[list[int]]) -> list[float]:
    """Seconds until the first token of each."""

    async def client(session: aiohttp.ClientSession) -> list[float]:
        return [await first_token(fleet, session, prompt) for prompt in prompts]

    async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(600)) as session:
        times = await asyncio.gather(*(client(session) for _ in range(CLIENTS)))
    return [seconds for of_client in times for seconds in of_client]


async def first_token(fleet: Cell, session: aiohttp.ClientSession, prompt: list[int]) -> float:
    body = {
        "model": "m",
        "prompt": prompt,
        "max_tokens": OUTPUT,
        "temperature": 0,
        "ignore_eos": True,
        "stream": True,
    }
    began = time.monotonic()
    async with session.post(f"{fleet.url}/v1/completions", json=body) as answer:
        assert answer.status == 200, await answer.text()
        await answer.content.readline()
        seconds = time.monotonic() - began
        await answer.read()
    return seconds


async def counts(fleet: Cell, names: tuple[str, ...]) -> dict[str, float]:
    """Of the worker, as the router knows them."""
    (worker,) = (await fleet.ctl("kv"))["workers"]
    return {name: worker["counts"].get(name, 0) for name in names}
