"""A load beside what is done to the fleet, and the rows that every scenario shares."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from tests.chaos.cell import Cell
from tests.chaos.report import Row
from tests.rigs.load import KINDS, Answer, Ask, Load, faults_of, kinds_of, percentile

SHOWN = 3
SHOWN_CHARS = 160


@asynccontextmanager
async def under_load(
    cell: Cell, rate: float, ask: Ask | None = None, *, seed: int = 1, running: int = 5
) -> AsyncIterator[Load]:
    """Inside, `running` streams or more run; afterwards all that were started have ended."""
    load = Load(cell.url, rate=rate, ask=ask, seed=seed)
    if ask is not None and ask.prompts:
        await load.learn()
    async with asyncio.TaskGroup() as group:
        group.create_task(load.run())
        try:
            await cell.until("streams run", lambda: len(load.running) >= running, 30)
            yield load
        finally:
            load.stop()


def nothing_lost(
    test: str, answers: list[Answer], least: int = 1, *, refusals: bool = False
) -> Row:
    """All finished with the right text, usage and finish_reason; `least`: how many at least.
    `refusals`: some may be refused at once, where nobody is left to serve them."""
    faults, refused = faults_of(answers), [a for a in answers if a.refused]
    finished = len(answers) - len(faults) - len(refused)
    figure = f"{len(faults)} failed of {len(answers)}"
    if faults:
        figure += ": " + "; ".join(fault[:SHOWN_CHARS] for fault in faults[:SHOWN])
    if refused:
        figure += f", {len(refused)} refused at once ({refused[0].error[:SHOWN_CHARS]})"
    target = f"0 failed of {least:,} or more"
    good = not faults and finished >= least and (refusals or not refused)
    return Row(test, figure, target, good)


def every_kind(test: str, answers: list[Answer]) -> Row:
    """Each kind of fault by itself, so that none is meant to be another."""
    counts = kinds_of(answers)
    figure = ", ".join(f"{counts[kind]} {kind}" for kind in KINDS)
    return Row(test, figure, "0 each", not counts)


def gaps_after(answers: list[Answer], instants: list[float]) -> list[float]:
    """Of each stream that was running at one of the instants and paused then, how long."""
    return [
        answer.gap
        for answer in answers
        if any(answer.gap_at - answer.gap <= at <= answer.gap_at for at in instants)
    ]


def longest_gap(test: str, gaps: list[float], limit: float, share: float = 1.0) -> Row:
    worst = percentile(gaps, share)
    what = "longest" if share >= 1 else f"p{share * 100:.0f}"
    figure = f"{what} {worst:.2f} s of {len(gaps)} streams, median {percentile(gaps, 0.5):.2f} s"
    return Row(test, figure, f"at most {limit:g} s", bool(gaps) and worst <= limit)
