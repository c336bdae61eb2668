"""Clients that leave, in each phase of a request: what it held is free at once, on both workers.

What the workers hold is read from themselves, over their metrics sockets: the router hears of it
only with the next beat.
"""

from __future__ import annotations

import asyncio
import random
import re
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from functools import partial

import aiohttp

from services.health.metrics.scrape import scrape
from tests.chaos.actions import Bend
from tests.chaos.cell import Cell, Plan, cell
from tests.chaos.progress import say
from tests.chaos.report import Row
from tests.chaos.scenarios.deaths import PATIENT
from tests.chaos.scenarios.run import nothing_lost, under_load
from tests.rigs.load import LETTERS, MODEL, Ask, percentile

EACH = 200
AT_ONCE = 10
FREE_SECONDS = 0.25
PROMPT_TOKENS = 500
LONG_TOKENS = 4000
PLAN = Plan(
    prefill=1,
    decode=1,
    module={"p0": "tests.chaos.bent"},
    settings=PATIENT
    | {
        "BATON_ENGINE__MAX_NUM_SEQS": "32",
        "BATON_ENGINE__MAX_NUM_BATCHED_TOKENS": "64",
        "BATON_ENGINE__SIM__KV_BLOCKS": "1024",
        "BATON_ENGINE__SIM__PREFILL_TOKENS_PER_S": "2000",
    },
)
"""Steps of 32 ms, for an abort waits for the step in progress, on any engine. Prompts whose KV is
on its way are not to be taken for a decode worker that lags behind."""


@dataclass(frozen=True)
class Held:
    """What both workers say that they hold. `running` of P: prompts that it computes."""

    requests: dict[str, int] = field(default_factory=dict)
    running: dict[str, int] = field(default_factory=dict)
    kv: dict[str, float] = field(default_factory=dict)

    @property
    def nothing(self) -> bool:
        return not any([*self.requests.values(), *self.running.values(), *self.kv.values()])


async def held(fleet: Cell) -> Held:
    pages, _ = await scrape(fleet.run_dir)
    workers = {name: page for (role, name), page in pages.items() if role in ("prefill", "decode")}
    return Held(
        {name: int(_metric(page, "requests")) for name, page in workers.items()},
        {name: int(_metric(page, "engine_running")) for name, page in workers.items()},
        {name: _metric(page, "kv_used_ratio") for name, page in workers.items()},
    )


def _metric(page: str, name: str) -> float:
    found = re.search(rf"^baton_worker_{name} (\S+)$", page, re.MULTILINE)
    assert found is not None, f"no {name} on the page"
    return float(found[1])


class Clients:
    """Streams that are begun together and closed together. `tokens`: events seen, of each."""

    def __init__(self, fleet: Cell, tokens: int) -> None:
        self._url = f"{fleet.url}/v1/completions"
        self._most = tokens
        self._tasks: list[asyncio.Task[None]] = []
        self.seen: list[int] = []

    def begin(self, group: asyncio.TaskGroup, chance: random.Random, count: int) -> None:
        self.seen = [0] * count
        self._tasks = [
            group.create_task(self._one(at, chance.choices(LETTERS, k=PROMPT_TOKENS)))
            for at in range(count)
        ]

    async def close(self) -> None:
        """Returns when all connections are closed."""
        for task in self._tasks:
            task.cancel()
        await asyncio.wait(self._tasks)

    async def _one(self, at: int, prompt: list[int]) -> None:
        body = {
            "model": MODEL,
            "prompt": prompt,
            "max_tokens": self._most,
            "stream": True,
            "ignore_eos": True,
        }
        async with (
            aiohttp.ClientSession() as session,
            session.post(self._url, json=body) as answer,
        ):
            assert answer.status == 200, await answer.text()
            async for line in answer.content:
                self.seen[at] += line.startswith(b"data: ")


async def everywhere(count: int = EACH) -> list[Row]:
    rows: list[Row] = []
    async with cell(PLAN) as fleet:
        for phase in (_prefill, _transfer, _decode, _queue):
            rows.append(await phase(fleet, count))
            say(rows[-1:])
        rows.append(await _nothing_left(fleet))
        async with under_load(fleet, 8, Ask(max_tokens=8), running=1) as load:
            await fleet.until("more were asked", lambda: load.started >= 20, 60)
        rows.append(nothing_lost("- it still serves", load.answers, 20))
    return rows


async def _prefill(fleet: Cell, count: int) -> Row:
    async def computing(_: Clients) -> bool:
        return (await held(fleet)).running["p0"] == AT_ONCE

    return await _rounds(fleet, "while P computes", count, computing)


async def _transfer(fleet: Cell, count: int) -> Row:
    """P has computed all and sent all, and nothing of it arrives: the data messages are lost."""
    lost = Bend(fleet, "p0", "drop")

    async def on_its_way(_: Clients) -> bool:
        now = await held(fleet)
        computed = not now.running["p0"] and now.kv["p0"] > 0
        return computed and now.requests["d0"] == AT_ONCE

    lost.strike()
    try:
        row = await _rounds(fleet, "while KV is on its way", count, on_its_way)
    finally:
        lost.heal()
    assert lost.landed(), "no KV message was lost"
    return row


async def _decode(fleet: Cell, count: int) -> Row:
    async def streaming(clients: Clients) -> bool:
        return all(seen > 2 for seen in clients.seen)

    return await _rounds(fleet, "while D streams", count, streaming)


async def _queue(fleet: Cell, count: int) -> Row:
    """One stream has the only place."""
    await fleet.ctl("limits", max_active=1)
    first = Clients(fleet, LONG_TOKENS)
    async with asyncio.TaskGroup() as group:
        first.begin(group, random.Random("first"), 1)
        await fleet.until("the place is taken", lambda: first.seen[0] > 0)

        async def waiting(_: Clients) -> bool:
            return bool((await fleet.ctl("status"))["queued"] == AT_ONCE)

        async def left() -> bool:
            return bool((await fleet.ctl("status"))["queued"] == 0)

        row = await _rounds(fleet, "while they wait in the queue", count, waiting, left)
        await first.close()
    await fleet.ctl("limits", max_active=0)
    return row


async def _rounds(
    fleet: Cell,
    phase: str,
    count: int,
    there: Callable[[Clients], Awaitable[bool]],
    free: Callable[[], Awaitable[bool]] | None = None,
) -> Row:
    """`there`: all clients of a round are in this phase. `free`: nothing is held for them."""

    async def idle() -> bool:
        return (await held(fleet)).nothing

    seconds: list[float] = []
    chance = random.Random(phase)
    clients = Clients(fleet, LONG_TOKENS)
    for _ in range(count // AT_ONCE):
        async with asyncio.TaskGroup() as group:
            clients.begin(group, chance, AT_ONCE)
            await fleet.until(f"all are there {phase}", partial(there, clients), 30)
            begun = time.monotonic()
            await clients.close()
        await fleet.until(f"all is free {phase}", free or idle, 10)
        seconds.append(time.monotonic() - begun)
    worst = max(seconds)
    figure = (
        f"free after {percentile(seconds, 0.5) * 1000:.0f} ms, p99 "
        f"{percentile(seconds, 0.99) * 1000:.0f} ms, of {len(seconds)} times {AT_ONCE}"
    )
    return Row(
        f"clients leave {phase}",
        figure,
        f"at most {FREE_SECONDS * 1000:.0f} ms",
        worst <= FREE_SECONDS,
    )


async def _nothing_left(fleet: Cell) -> Row:
    async def empty() -> bool:
        told = await fleet.ctl("kv")
        rows = (await fleet.workers()).values()
        return not told["holds_total"] and not any(row["requests"] for row in rows)

    seconds = await fleet.until("nothing is held", empty, 10)
    orphans = (await fleet.ctl("kv"))["orphans"]
    figure = f"{orphans} orphans, nothing held {seconds:.1f} s later"
    return Row("- left behind", figure, "nothing", orphans == 0)
