"""Grammars go to a process of their own: what happens there ends there."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager
from itertools import count

import psutil
import pytest
import structlog

from common.clock import Clock, ManualClock
from common.config import from_mapping
from common.errors import BatonError, Code
from common.messages import Structured, StructureKind
from common.telemetry.log import Logger
from services.gateway.auth.caller import ANONYMOUS, Caller
from services.gateway.grammar import pool as module
from services.gateway.grammar.pool import GrammarPool

COMMAND = [sys.executable, "-m", "tests.component.services.gateway.grammar.compiler"]
# A busy machine may need longer than 300 ms for a good grammar, too (see `compiled`).
PATIENT_MS, HASTY_MS = 30_000, 300


def regex(source: str) -> Structured:
    return Structured(kind=StructureKind.REGEX, source=source)


@contextmanager
def opened(clock: Clock, log: Logger, ms_max: int, **model: str) -> Iterator[GrammarPool]:
    limits = {"grammar_ms_max": ms_max, "grammar_mib_max": 64}
    config = from_mapping({"gateway": {"limits": limits}, "model": model})
    made = GrammarPool(config, clock, log, COMMAND)
    try:
        yield made
    finally:
        made.close()


@pytest.fixture
def log() -> Logger:
    made: Logger = structlog.get_logger("test")
    return made


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
async def grammars(clock: Clock, log: Logger) -> AsyncIterator[GrammarPool]:
    with opened(clock, log, PATIENT_MS) as made:
        yield made


@pytest.fixture
async def hasty(clock: Clock, log: Logger) -> AsyncIterator[GrammarPool]:
    """For tests in which an endless grammar is given up."""
    with opened(clock, log, HASTY_MS) as made:
        yield made


async def until(true: Callable[[], object]) -> None:
    async with asyncio.timeout(10):
        while not true():  # noqa: ASYNC110 - another process' state has no event
            await asyncio.sleep(0.002)


async def refusal(grammars: GrammarPool, source: str, key_id: str = "") -> BatonError:
    with pytest.raises(BatonError) as raised:
        await grammars.check(regex(source), Caller(key_id=key_id))
    return raised.value


async def compiled(grammars: GrammarPool, source: str, key_id: str = "") -> str:
    """The name of a good grammar that compiled. One that the machine was too slow for is asked for
    again by another name, since its report is remembered."""
    async with asyncio.timeout(30):
        for number in count():
            try:
                await grammars.check(regex(f"{source}#{number}"), Caller(key_id=key_id))
            except BatonError as error:
                if "grammar_ms_max" not in error.message:
                    raise
            else:
                return f"{source}#{number}"
    raise AssertionError("the loop ends in one of two other ways")


@pytest.mark.parametrize(
    ("source", "told"),
    [
        ("bad", "unbalanced ("),
        ("endless", "300 ms (gateway.limits.grammar_ms_max)"),
        ("huge", "64 MiB (gateway.limits.grammar_mib_max)"),
        ("crash", "breaks the compiler"),
    ],
)
async def test_what_does_not_compile_is_refused_and_harms_nothing_else(
    grammars: GrammarPool, hasty: GrammarPool, source: str, told: str
) -> None:
    used = hasty if source == "endless" else grammars
    await compiled(used, "good")
    pid = used.pid
    error = await refusal(used, source)
    assert error.code is Code.INVALID_REQUEST
    assert error.param == "structured_outputs"
    assert told in error.message
    assert "at 3" not in error.message
    await compiled(used, "good#again")
    assert used.pid == pid
    assert psutil.Process(pid).children() == []


async def test_the_loop_goes_on_while_a_grammar_compiles_for_ever(hasty: GrammarPool) -> None:
    await compiled(hasty, "good")
    endless = asyncio.gather(*(refusal(hasty, f"endless#{n}") for n in range(module.COMPILING_MAX)))
    turns = 0
    while not endless.done():
        await asyncio.sleep(0.001)
        turns += 1
    assert turns > 5
    assert all("grammar_ms_max" in error.message for error in await endless)


async def test_at_most_two_compile_at_once_and_the_rest_waits(hasty: GrammarPool) -> None:
    await compiled(hasty, "good")
    assert hasty.pid is not None
    process, most = psutil.Process(hasty.pid), 0
    asked = asyncio.gather(*(refusal(hasty, f"endless#{n}") for n in range(4)))
    while not asked.done():
        await asyncio.sleep(0.01)
        most = max(most, len(process.children()))
    assert most == module.COMPILING_MAX
    assert len(await asked) == 4


async def test_more_than_may_wait_are_told_to_come_back(hasty: GrammarPool) -> None:
    await compiled(hasty, "good")
    fill = module.COMPILING_MAX + module.WAITING_MAX
    asked = [asyncio.ensure_future(refusal(hasty, f"endless#{n}")) for n in range(fill)]  # noqa: TID251 - a client each
    await asyncio.sleep(0)
    error = await refusal(hasty, "endless#last")
    assert (error.code, error.retry_after_ms) == (Code.OVERLOADED, 1_000)
    hasty.close()
    assert {error.code for error in await asyncio.gather(*asked)} == {Code.OVERLOADED}


async def test_a_key_with_many_new_grammars_leaves_room_for_others(hasty: GrammarPool) -> None:
    good = await compiled(hasty, "good")
    most = from_mapping({}).gateway.limits.grammars_per_key_max
    greedy = [
        asyncio.ensure_future(refusal(hasty, f"endless#{n}", "greedy"))  # noqa: TID251 - a client each
        for n in range(most)
    ]
    await asyncio.sleep(0)
    error = await refusal(hasty, "good#more", "greedy")
    assert (error.code, error.retry_after_ms) == (Code.RATE_LIMITED, 1_000)
    assert "grammars_per_key_max" in error.message
    await hasty.check(regex(good), Caller(key_id="greedy"))
    await compiled(hasty, "good#other", "modest")
    joined = await refusal(hasty, f"endless#{most - 1}", "modest")
    assert "grammar_ms_max" in joined.message
    await asyncio.gather(*greedy)
    await compiled(hasty, "good#more", "greedy")


async def test_a_judgement_is_remembered_and_a_slow_one_only_for_a_while(
    hasty: GrammarPool, clock: ManualClock
) -> None:
    good = await compiled(hasty, "good")
    await refusal(hasty, "bad")
    await refusal(hasty, "endless")
    hasty.close()
    await until(lambda: hasty.pid is None)
    await hasty.check(regex(good), ANONYMOUS)
    assert "unbalanced" in (await refusal(hasty, "bad")).message
    assert "grammar_ms_max" in (await refusal(hasty, "endless")).message
    assert hasty.pid is None
    clock.advance(module.TOO_SLOW_SECONDS)
    await refusal(hasty, "endless")
    assert hasty.pid is not None


async def test_what_is_remembered_is_bounded(
    grammars: GrammarPool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "REPORTS_MAX", 2)
    for source in ("good#1", "good#2", "good#1", "good#3"):
        await grammars.check(regex(source), ANONYMOUS)
    assert len(grammars._reports) == 2
    os.kill(grammars.pid or 0, signal.SIGSTOP)
    await grammars.check(regex("good#1"), ANONYMOUS)


async def test_the_same_grammar_asked_at_once_is_compiled_once(grammars: GrammarPool) -> None:
    await asyncio.gather(*(grammars.check(regex("good"), ANONYMOUS) for _ in range(20)))
    assert grammars._jobs == 1


async def test_a_client_that_leaves_takes_nobody_with_it(grammars: GrammarPool) -> None:
    first = asyncio.ensure_future(grammars.check(regex("good"), ANONYMOUS))  # noqa: TID251 - a client
    second = asyncio.ensure_future(grammars.check(regex("good"), ANONYMOUS))  # noqa: TID251 - a client
    await until(lambda: grammars._pending)
    first.cancel()
    await second
    assert first.cancelled()


async def test_a_lost_process_fails_who_waits_and_is_started_again(grammars: GrammarPool) -> None:
    await grammars.check(regex("good"), ANONYMOUS)
    lost = grammars.pid
    assert lost is not None
    asked = asyncio.ensure_future(refusal(grammars, "endless"))  # noqa: TID251 - a client
    await until(psutil.Process(lost).children)
    (fork,) = psutil.Process(lost).children()
    os.kill(lost, signal.SIGKILL)
    async with asyncio.timeout(10):
        assert (await asked).code is Code.OVERLOADED, "while its fork lives on"
    await grammars.check(regex("good#2"), ANONYMOUS)
    assert grammars.pid not in {None, lost}
    fork.kill()


async def test_the_process_ends_with_its_gateway(grammars: GrammarPool) -> None:
    await grammars.check(regex("good"), ANONYMOUS)
    assert grammars._link is not None
    process, transport = grammars._link.process, grammars._link._transport
    assert transport is not None
    transport.abort()
    await until(lambda: process.poll() is not None)


async def test_a_process_that_cannot_work_says_why(clock: Clock, log: Logger) -> None:
    with opened(clock, log, PATIENT_MS, name="unusable") as made:
        error = await refusal(made, "good")
    assert error.code is Code.OVERLOADED
    assert made.pid is None
