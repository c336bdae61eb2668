"""What a helper found out about a structure is remembered, and asked for once."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator

import pytest
import structlog

from common.config import from_mapping
from common.errors import BatonError, Code
from common.messages import Structured, StructureKind
from services.gateway.auth.caller import ANONYMOUS, Caller
from services.gateway.helper import grammars as module
from services.gateway.helper.grammars import Grammars
from services.gateway.helper.pool import HelperPool

COMMAND = [sys.executable, "-m", "tests.component.services.gateway.helper.played"]
LIMITS = {"grammar_ms_max": 300, "grammar_mib_max": 64}
CONFIG = from_mapping({"gateway": {"limits": LIMITS}})


class CountedPool(HelperPool):
    jobs = 0

    async def run(self, *args: object, **kwargs: object) -> object:  # type: ignore[override]
        self.jobs += 1
        return await super().run(*args, **kwargs)  # type: ignore[arg-type]


@pytest.fixture
async def pool() -> AsyncIterator[CountedPool]:
    made = CountedPool(CONFIG, "light", structlog.get_logger("test"), COMMAND)
    await made.start()
    yield made
    made.close()


@pytest.fixture
def grammars(pool: CountedPool) -> Grammars:
    return Grammars(pool, CONFIG.gateway.limits)


def regex(source: str) -> Structured:
    return Structured(kind=StructureKind.REGEX, source=source)


async def refusal(grammars: Grammars, source: str, key_id: str = "") -> BatonError:
    with pytest.raises(BatonError) as raised:
        await grammars.check(regex(source), Caller(key_id=key_id))
    return raised.value


@pytest.mark.parametrize(
    ("source", "told"),
    [
        ("bad", "unbalanced ("),
        ("endless", "300 ms of CPU time (gateway.limits.grammar_ms_max)"),
        ("huge", "64 MiB (gateway.limits.grammar_mib_max)"),
        ("crash", "64 MiB (gateway.limits.grammar_mib_max)"),
    ],
)
async def test_what_does_not_compile_is_refused(grammars: Grammars, source: str, told: str) -> None:
    error = await refusal(grammars, source)
    assert error.code is Code.INVALID_REQUEST
    assert error.param == "structured_outputs"
    assert told in error.message
    await grammars.check(regex("good"), ANONYMOUS)


async def test_a_judgement_is_remembered(grammars: Grammars, pool: CountedPool) -> None:
    await grammars.check(regex("good"), ANONYMOUS)
    for source in ("bad", "endless"):
        await refusal(grammars, source)
    assert pool.jobs == 3
    await grammars.check(regex("good"), ANONYMOUS)
    assert "unbalanced" in (await refusal(grammars, "bad")).message
    assert "grammar_ms_max" in (await refusal(grammars, "endless")).message
    assert pool.jobs == 3


async def test_what_is_not_its_fault_is_not_remembered(
    grammars: Grammars, pool: CountedPool
) -> None:
    for jobs in (1, 2):
        error = await refusal(grammars, "killed")
        assert (error.code, error.retry_after_ms) == (Code.OVERLOADED, 1_000)
        assert pool.jobs == jobs


async def test_what_is_remembered_is_bounded(
    grammars: Grammars, pool: CountedPool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "JUDGEMENTS_MAX", 2)
    for source in ("good#1", "good#2", "good#1", "good#3", "good#1"):
        await grammars.check(regex(source), ANONYMOUS)
    assert pool.jobs == 3
    await grammars.check(regex("good#2"), ANONYMOUS)
    assert pool.jobs == 4


async def test_the_same_grammar_asked_at_once_is_compiled_once(
    grammars: Grammars, pool: CountedPool
) -> None:
    await asyncio.gather(*(grammars.check(regex("good"), ANONYMOUS) for _ in range(20)))
    assert pool.jobs == 1


async def test_a_client_that_leaves_takes_nobody_with_it(grammars: Grammars) -> None:
    first = asyncio.ensure_future(grammars.check(regex("good"), ANONYMOUS))  # noqa: TID251 - a client
    second = asyncio.ensure_future(grammars.check(regex("good"), ANONYMOUS))  # noqa: TID251 - a client
    await asyncio.sleep(0)
    first.cancel()
    await second
    assert first.cancelled()


async def test_a_key_with_many_new_grammars_leaves_room_for_others(grammars: Grammars) -> None:
    await grammars.check(regex("good"), ANONYMOUS)
    most = CONFIG.gateway.limits.grammars_per_key_max
    greedy = [
        asyncio.ensure_future(refusal(grammars, f"endless#{n}", "greedy"))  # noqa: TID251 - a client
        for n in range(most)
    ]
    await asyncio.sleep(0)
    error = await refusal(grammars, "good#more", "greedy")
    assert (error.code, error.retry_after_ms) == (Code.RATE_LIMITED, 1_000)
    assert "grammars_per_key_max" in error.message
    await grammars.check(regex("good"), Caller(key_id="greedy"))
    await grammars.check(regex("good#other"), Caller(key_id="modest"))
    joined = await refusal(grammars, f"endless#{most - 1}", "modest")
    assert "grammar_ms_max" in joined.message
    await asyncio.gather(*greedy)
    await grammars.check(regex("good#more"), Caller(key_id="greedy"))
