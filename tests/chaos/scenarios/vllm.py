"""The kinds of death and hang on real vLLM, each several times, token for token.

The embedded model, greedy, in float32; what each prompt must give is what the fleet gave before
anything was done to it. A killed engine takes seconds to be back, so each kind lasts that long.
"""

from __future__ import annotations

import asyncio
import signal
import time
from collections.abc import Awaitable, Callable
from dataclasses import replace
from functools import partial

import psutil

from common.model.embedded import ensure_embedded_model
from tests.chaos.actions import Kill, Stop, Term, inflict
from tests.chaos.cell import READY_SECONDS_VLLM, Cell, Plan, cell
from tests.chaos.progress import report, say
from tests.chaos.report import Row
from tests.chaos.scenarios.engines import last_words
from tests.chaos.scenarios.run import (
    every_kind,
    gaps_after,
    longest_gap,
    nothing_lost,
    under_load,
)
from tests.rigs.load import Answer, Ask, Load

TIMES = 5
RATE = 2.0
STOPPED_SECONDS = 5.0
HANG_MS = 10_000
ASK = Ask(prompt_tokens=(150, 400), max_tokens=160, prompts=8)
PLAN = Plan(
    prefill=1,
    decode=2,
    engine="vllm",
    settings={
        "BATON_MODEL__DTYPE": "float32",
        "BATON_ROUTER__REMOTE_PREFILL": "always",
        "BATON_ENGINE__KV_CACHE_MIB": "128",
        "BATON_ENGINE__HANG_MS": str(HANG_MS),
        "BATON_FLEET__DRAIN_MS": "4000",
        "BATON_ROUTER__ADMISSION__CAPACITY_FULL": "0.4",
        "BATON_ROUTER__ADMISSION__DECODE_QUEUE_OVERDUE_MS": "30000",
        "BATON_GATEWAY__ROUTER_WAIT_MS": "30000",
    },
)
"""Patience, for three engines may share a core or two; nothing of it hides a token."""


async def kinds(times: int = TIMES) -> list[Row]:
    """One fleet for all kinds; each has its own row, so that a fault is its kind's."""
    rows: list[Row] = []
    async with cell(PLAN) as fleet:
        for name, strike in STRIKES.items():
            rows += await _kind(fleet, name, strike, times)
            say(rows[-3:])
        status = await fleet.ctl("status")
        rows.append(await _engine_alone(fleet))
    wrong = [
        alarm["sentence"] for alarm in status["alarms"] if alarm["cause"] in ("bytes", "digest")
    ]
    rows.append(Row("- alarms of bytes or digests", "; ".join(wrong) or "none", "none", not wrong))
    return rows


async def speculating(times: int) -> list[Row]:
    """Decode workers that draft tokens are killed in the middle of bursts: the model drafts for
    itself, so that nearly every message is one."""
    drafts = {
        "BATON_SPECULATION__METHOD": "draft_model",
        "BATON_SPECULATION__DRAFTER": str(ensure_embedded_model()),
        "BATON_SPECULATION__HAND_OVER": "true",
        "BATON_SPECULATION__TOKENS": "3",
    }
    async with cell(replace(PLAN, settings={**PLAN.settings, **drafts})) as fleet:
        kill = "kill -9 decode"
        rows = await _kind(fleet, f"{kill}, with drafts", STRIKES[kill], times)
        workers = await fleet.ctl("workers")
    steps = max(worker["tokens_per_output"] for worker in workers)
    return [*rows, Row("- tokens of a burst", f"{steps:.2f}", "more than 2", steps > 2)]


async def _killed(fleet: Cell, name: str) -> None:
    await inflict(fleet, Kill(fleet, name))


async def _stopped(fleet: Cell, name: str) -> None:
    stop = Stop(fleet, name)
    await inflict(fleet, stop)
    await asyncio.sleep(STOPPED_SECONDS)
    stop.heal()


async def _drained(fleet: Cell, name: str) -> None:
    pid = fleet.pid(name)
    await inflict(fleet, Term(fleet, name))
    await fleet.until(f"{name} ends", partial(_gone, fleet, pid), 30)


STRIKES: dict[str, Callable[[Cell], Awaitable[None]]] = {
    "kill -9 decode": lambda fleet: _killed(fleet, "d0"),
    "kill -9 prefill": lambda fleet: _killed(fleet, "p0"),
    "SIGSTOP decode": lambda fleet: _stopped(fleet, "d0"),
    "kill -9 the router": lambda fleet: _killed(fleet, "r0"),
    "drain decode by SIGTERM": lambda fleet: _drained(fleet, "d0"),
}


async def _kind(
    fleet: Cell, name: str, strike: Callable[[Cell], Awaitable[None]], times: int
) -> list[Row]:
    test = f"vLLM: {name}, {times} times"
    struck: list[float] = []
    async with under_load(fleet, RATE, ASK, running=2) as load, asyncio.TaskGroup() as beside:
        telling = beside.create_task(report(test, fleet, load, 0))
        for _ in range(times):
            await fleet.until("a stream runs on d0", partial(_decodes, fleet, "d0"), 60)
            struck.append(time.monotonic())
            await strike(fleet)
            await fleet.until("all are ready", fleet.all_ready, READY_SECONDS_VLLM)
            await fleet.until("more were asked", partial(_asked, load, load.started + 3), 60)
        telling.cancel()
    return [
        nothing_lost(test, load.answers, 3 * times),
        every_kind("- of them", load.answers),
        _pauses(load.answers, struck),
    ]


async def _decodes(fleet: Cell, name: str) -> bool:
    rows = await fleet.ctl("requests")
    return any(row["state"] == "decoding" and row["decode"] == name for row in rows)


def _asked(load: Load, least: int) -> bool:
    return load.started >= least


def _pauses(answers: list[Answer], struck: list[float]) -> Row:
    """Told, and not judged: on a shared core an engine's step may take a second."""
    row = longest_gap("- pauses of streams that ran then", gaps_after(answers, struck), 60.0)
    return Row(row.test, row.figure, "-", good=None)


async def _engine_alone(fleet: Cell) -> Row:
    """Its daemon lives, the engine's process is stopped while it has nothing to do."""
    pid = fleet.pid("d0")
    (core,) = psutil.Process(pid).children()
    core.send_signal(signal.SIGSTOP)
    took = await fleet.until("its daemon ends", partial(_gone, fleet, pid), 60)
    await fleet.until("the engine's process ends with it", lambda: not core.is_running())
    said = last_words(fleet.log("d0"))
    status = next(death.status for death in fleet.deaths if death.pid == pid)
    good = status == 1 and "did not answer a question" in said
    figure = f"status {status} after {took:.1f} s: {said}"
    return Row("vLLM: SIGSTOP of an idle engine alone", figure, "its daemon ends with 1", good)


def _gone(fleet: Cell, pid: int) -> bool:
    return any(death.pid == pid for death in fleet.deaths)
