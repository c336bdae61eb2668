"""Daemons that are stopped, and ways between them that carry nothing, or badly, for a while."""

from __future__ import annotations

import asyncio
import time
from contextlib import ExitStack

from tests.chaos.actions import Bend, CutData, Hold, Stop, inflict
from tests.chaos.cell import Cell, Plan, cell
from tests.chaos.network import NoNetworkError, network
from tests.chaos.report import Row
from tests.chaos.scenarios.run import longest_gap, nothing_lost, under_load
from tests.rigs.load import Answer, Ask

AFTER_SECONDS = 3.0
LEAST = 20
ASK = Ask(max_tokens=100)
BENT = "tests.chaos.bent"
FLEET = Plan(prefill=2, decode=3)


async def stopped(name: str, rate: float, seconds: float) -> list[Row]:
    """A worker that neither works nor closes its connections."""
    async with cell(FLEET) as fleet:
        stop = Stop(fleet, name)
        answers, at, _ = await _for_a_while(fleet, stop, rate, seconds)
        return [
            nothing_lost(f"SIGSTOP of {name} for {seconds:g} s", answers, LEAST),
            longest_gap("- longest pause in a stream", _gaps(answers, at, seconds), 2.0),
            _first_tokens(answers, at, seconds, 4.0),
        ]


async def control(name: str, rate: float, seconds: float, delay: float = 0.0) -> list[Row]:
    """Between a worker and the router nothing passes, or all comes late."""
    async with cell(Plan(prefill=2, decode=3, tapped=(name,))) as fleet:
        hold = Hold(fleet, name, delay=delay)
        answers, at, back = await _for_a_while(fleet, hold, rate, seconds)
        return [
            nothing_lost(f"{hold.name} for {seconds:g} s", answers, LEAST),
            longest_gap("- longest pause in a stream", _gaps(answers, at, seconds), 3.0),
            _first_tokens(answers, at, seconds, 4.0),
            Row("- in use again after", f"{back:.1f} s", "at most 3 s", back <= 3.0),
        ]


async def data(name: str, rate: float, seconds: float) -> list[Row]:
    """A worker's KV network takes packets and delivers none."""
    test = f"partition of {name}'s KV network for {seconds:g} s"
    names = ["p0", "p1", "d0", "d1", "d2"]
    with ExitStack() as stack:
        try:
            made = stack.enter_context(network(names))
        except NoNetworkError as error:
            return [Row(test, f"no namespaces here: {error}", "0 failed", None)]
        plan = Plan(
            prefill=2,
            decode=3,
            settings={"BATON_KV__TRANSPORTS": "tcp,self"},
            own={
                name: {f"BATON_{_role(name)}__{name.upper()}__KV__HOST": made.address(name)}
                for name in names
            },
            prefix={name: made.prefix(name) for name in names},
        )
        async with cell(plan) as fleet:
            cut = CutData(fleet, name, made)
            answers, at, _ = await _for_a_while(fleet, cut, rate, seconds)
            return [
                nothing_lost(test, answers, LEAST),
                longest_gap("- longest pause in a stream", _gaps(answers, at, seconds), 3.0),
                _first_tokens(answers, at, seconds, 4.0),
            ]


async def bent(how: str, rate: float, seconds: float) -> list[Row]:
    """One prefill worker's KV messages are damaged, lost, late or cut off. What no transport does,
    lose data of a connection that stands, only the load timeout ends."""
    short = {"BATON_KV__LOAD_TIMEOUT_MS": "3000"} if how == "drop" else {}
    plan = Plan(prefill=2, decode=2, module={"p0": BENT}, settings=short)
    async with cell(plan) as fleet:
        bend = Bend(fleet, "p0", how)
        answers, at, _ = await _for_a_while(fleet, bend, rate, seconds)
        return [
            nothing_lost(f"{bend.name} for {seconds:g} s", answers, LEAST),
            Row("- messages bent", str(bend.count()), "1 or more", bend.count() > 0),
            _first_tokens(answers, at, seconds, 4.0),
        ]


def _role(name: str) -> str:
    return "PREFILL" if name.startswith("p") else "DECODE"


async def _for_a_while(
    fleet: Cell, action: Stop | Hold | CutData | Bend, rate: float, seconds: float
) -> tuple[list[Answer], float, float]:
    """Answers, when the fault began, and how long all took to be trusted again after it."""
    async with under_load(fleet, rate, ASK) as load:
        at = time.monotonic()
        await inflict(fleet, action, 10.0)
        await asyncio.sleep(max(0.0, at + seconds - time.monotonic()))
        action.heal()
        back = await fleet.until("all are trusted again", fleet.all_ready, 60)
        await asyncio.sleep(AFTER_SECONDS)
    return load.answers, at, back


def _gaps(answers: list[Answer], at: float, seconds: float) -> list[float]:
    until = at + seconds + AFTER_SECONDS
    return [a.gap for a in answers if at <= a.gap_at <= until]


def _first_tokens(answers: list[Answer], at: float, seconds: float, limit: float) -> Row:
    waits = [a.first - a.began for a in answers if a.first and at - 1 <= a.began <= at + seconds]
    worst = max(waits, default=0.0)
    figure = f"{worst:.2f} s of {len(waits)}, median {sorted(waits)[len(waits) // 2]:.2f} s"
    return Row("- longest wait for a first token", figure, f"at most {limit:g} s", worst <= limit)
