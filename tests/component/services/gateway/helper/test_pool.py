"""Jobs go to processes of their own: what happens there ends there."""

from __future__ import annotations

import asyncio
import os
import resource
import signal
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import psutil
import pytest
import structlog

from common.config import Config, from_mapping
from common.errors import BatonError, Code
from common.process.lifecycle import Tasks
from services.gateway.api.bounds import PARAM
from services.gateway.api.routes import Route
from services.gateway.full_api.port import CheckedBody
from services.gateway.helper import pool as module
from services.gateway.helper.jobs import SMALL_BYTES, AnswerJob, ApiJob, ApiReport
from services.gateway.helper.pool import HELPERS, SLOW_MAX, HelperPool

COMMAND = [sys.executable, "-m", "tests.component.services.gateway.helper.played"]
LIMITS = {"check_mib_max": 200, "checks_per_key_max": 4}
LOG = structlog.get_logger("test")


def config(*, check_ms_max: int = 300, **model: str) -> Config:
    limits = LIMITS | {"check_ms_max": check_ms_max}
    return from_mapping({"gateway": {"limits": limits}, "model": model})


@pytest.fixture
async def pool() -> AsyncIterator[HelperPool]:
    made = HelperPool(config(), "light", LOG, COMMAND)
    await made.start()
    await until(lambda: all(link.is_idle for link in made._links))
    yield made
    made.close()


def job(what: str, size: int = 0) -> ApiJob:
    return ApiJob(what.encode().ljust(size), 1, route=Route.CHAT)


async def pid_of(pool: HelperPool, what: str = "good", key_id: str = "") -> int:
    """The helper that did it."""
    report = await pool.run(job(what), key_id)
    assert isinstance(report, ApiReport)
    return int(report.checked.answer)


async def refusal(pool: HelperPool, what: str, size: int = 0, key_id: str = "") -> BatonError:
    with pytest.raises(BatonError) as raised:
        await pool.run(job(what, size), key_id)
    return raised.value


def asked(pool: HelperPool, what: str, size: int = 0, key_id: str = "") -> asyncio.Task[object]:
    return asyncio.ensure_future(pool.run(job(what, size), key_id))  # noqa: TID251 - a client


async def until(true: Callable[[], object]) -> None:
    async with asyncio.timeout(10):
        while not true():  # noqa: ASYNC110 - another process' state has no event
            await asyncio.sleep(0.002)


@pytest.mark.parametrize(
    ("what", "told"),
    [
        ("bad", "unbalanced ("),
        ("endless", "300 ms of CPU time (gateway.limits.check_ms_max)"),
        ("huge", "200 MiB (gateway.limits.check_mib_max)"),
        ("crash", "200 MiB (gateway.limits.check_mib_max)"),
        ("exit", "200 MiB (gateway.limits.check_mib_max)"),
        ("killed", "try again"),
        ("no report", "cannot be checked (OverflowError)"),
        ("unreadable", "try again"),
    ],
)
async def test_what_goes_wrong_is_told_and_harms_nothing_else(
    pool: HelperPool, what: str, told: str
) -> None:
    """Only what a request did itself is its fault."""
    parent = pool.pid
    error = await refusal(pool, what)
    ours = told == "try again"
    assert error.code is (Code.OVERLOADED if ours else Code.INVALID_REQUEST)
    assert error.retry_after_ms == (1_000 if ours else None)
    assert told in error.message
    await asyncio.gather(*(pid_of(pool) for _ in range(2 * HELPERS)))
    assert pool.pid == parent
    await until(lambda: len(psutil.Process(parent or 0).children()) == HELPERS)


async def test_what_gets_no_cpu_is_ended_and_may_be_tried_again() -> None:
    pool = HelperPool(config(check_ms_max=20), "light", LOG, COMMAND)
    try:
        error = await refusal(pool, "stuck")
        assert (error.code, error.retry_after_ms) == (Code.OVERLOADED, 1_000)
        await pid_of(pool)
    finally:
        pool.close()


async def test_an_error_that_repeats_the_body_is_cut(pool: HelperPool) -> None:
    error = await refusal(pool, "bad#what the client sent")
    assert error.message.startswith(f"{PARAM}: unbalanced (what")
    assert len(error.message) == len(error.param or "") < 500


async def test_the_loop_goes_on_meanwhile(pool: HelperPool) -> None:
    endless = asyncio.gather(*(refusal(pool, "endless") for _ in range(HELPERS)))
    turns = 0
    while not endless.done():
        await asyncio.sleep(0.001)
        turns += 1
    assert turns > 5
    assert {error.code for error in await endless} == {Code.INVALID_REQUEST}


async def test_a_body_of_megabytes_goes_there_and_back(pool: HelperPool) -> None:
    assert isinstance(await pool.run(job("good", 8 << 20)), ApiReport)


async def test_slow_jobs_leave_a_helper_for_small_ones(pool: HelperPool, tmp_path: Path) -> None:
    go = tmp_path / "go"
    slow = [asked(pool, f"wait#{go}", SMALL_BYTES + 1) for _ in range(HELPERS + 2)]
    await until(lambda: sum(link.pending is not None for link in pool._links) == SLOW_MAX)
    assert await pid_of(pool) == await pid_of(pool)
    assert not any(each.done() for each in slow)
    go.touch()
    await asyncio.gather(*slow)


async def test_keys_take_turns(pool: HelperPool, tmp_path: Path) -> None:
    go, order = tmp_path / "go", []
    held = [asked(pool, f"wait#{go}") for _ in range(HELPERS - 1)]
    last = tmp_path / "last"
    held.append(asked(pool, f"wait#{last}"))

    async def noted(key_id: str) -> None:
        await pool.run(job("good"), key_id)
        order.append(key_id)

    many = [asyncio.ensure_future(noted("greedy")) for _ in range(4)]  # noqa: TID251 - a client
    await asyncio.sleep(0)
    modest = asyncio.ensure_future(noted("modest"))  # noqa: TID251 - a client
    await asyncio.sleep(0)
    last.touch()
    await asyncio.gather(*many, modest)
    go.touch()
    await asyncio.gather(*held)
    assert order.index("modest") == 1


async def test_a_key_that_waits_for_much_is_told_to_come_back(
    pool: HelperPool, tmp_path: Path
) -> None:
    go = tmp_path / "go"
    most = config().gateway.limits.checks_per_key_max
    jobs = [asked(pool, f"wait#{go}", key_id="greedy") for _ in range(HELPERS + most)]
    await asyncio.sleep(0)
    error = await refusal(pool, "good", key_id="greedy")
    assert (error.code, error.retry_after_ms) == (Code.RATE_LIMITED, 1_000)
    assert "checks_per_key_max" in error.message
    modest = asked(pool, "good", key_id="modest")
    go.touch()
    await asyncio.gather(*jobs, modest)


async def test_more_than_may_wait_are_told_to_come_back(
    pool: HelperPool, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(module, "WAITING_MAX", 2)
    go = tmp_path / "go"
    jobs = [asked(pool, f"wait#{go}") for _ in range(HELPERS + 2)]
    await asyncio.sleep(0)
    error = await refusal(pool, "good")
    assert (error.code, error.retry_after_ms) == (Code.OVERLOADED, 1_000)
    go.touch()
    await asyncio.gather(*jobs)


async def test_a_client_that_leaves_before_its_turn_costs_nothing(
    pool: HelperPool, tmp_path: Path
) -> None:
    go = tmp_path / "go"
    held = [asked(pool, f"wait#{go}") for _ in range(HELPERS)]
    left = asked(pool, "crash")
    await asyncio.sleep(0)
    left.cancel()
    parent = psutil.Process(pool.pid or 0)
    before = {child.pid for child in parent.children()}
    go.touch()
    await asyncio.gather(*held)
    await pid_of(pool)
    assert {child.pid for child in parent.children()} == before


async def test_a_helper_that_keeps_memory_makes_room_for_another() -> None:
    pool = HelperPool(config(check_ms_max=10_000), "light", LOG, COMMAND)
    try:
        await pool.start()
        parent = psutil.Process(pool.pid or 0)
        keeper = await pid_of(pool, "keep")
        await until(lambda: keeper not in {c.pid for c in parent.children(recursive=True)})
        await pid_of(pool)
    finally:
        pool.close()


async def test_a_lost_parent_fails_who_waits_and_is_started_again(
    pool: HelperPool, tmp_path: Path
) -> None:
    lost = pool.pid
    waiting = asked(pool, f"wait#{tmp_path / 'never'}")
    await until(lambda: any(link.pending is not None for link in pool._links))
    helpers = psutil.Process(lost or 0).children(recursive=True)
    os.kill(lost or 0, signal.SIGKILL)
    await until(lambda: psutil.Process(lost or 0).status() == psutil.STATUS_ZOMBIE)
    for helper in helpers:
        os.kill(helper.pid, signal.SIGKILL)
    with pytest.raises(BatonError) as raised:
        await waiting
    assert raised.value.code is Code.OVERLOADED
    await pid_of(pool)
    assert pool.pid not in {None, lost}


async def test_all_end_with_the_gateway(pool: HelperPool) -> None:
    parent = psutil.Process(pool.pid or 0)
    helpers = parent.children(recursive=True)
    pool.close()
    await until(lambda: not any(each.is_running() for each in (parent, *helpers)))


async def test_a_configuration_may_be_long() -> None:
    """A socket takes 208 KiB before somebody reads."""
    origins = [f"https://page-{n}.example.com" for n in range(20_000)]
    made = HelperPool(from_mapping({"gateway": {"cors_origins": origins}}), "light", LOG, COMMAND)
    try:
        assert await pid_of(made)
    finally:
        made.close()


async def test_what_cannot_work_says_why() -> None:
    made = HelperPool(config(name="unusable"), "light", LOG, COMMAND)
    error = await refusal(made, "good")
    assert error.code is Code.OVERLOADED
    assert "no such tokenizer" in error.message
    assert "and more" not in error.message
    assert made.pid is None


async def test_helpers_that_end_before_they_greet_are_not_started_for_ever() -> None:
    made = HelperPool(config(name="mute"), "light", LOG, COMMAND)
    async with asyncio.timeout(10):
        error = await refusal(made, "good")
    assert (error.code, error.retry_after_ms) == (Code.OVERLOADED, 1_000)
    assert made.pid is None


async def test_a_parent_that_cannot_be_started_is_told_each_time_and_leaves_nothing_open() -> None:
    made = HelperPool(config(), "light", LOG, ["/nowhere/python"])
    before = len(descriptors())
    async with asyncio.timeout(10):
        errors = [await refusal(made, "good") for _ in range(2)]
    assert {error.code for error in errors} == {Code.OVERLOADED}
    assert "No such file" in errors[0].message
    assert errors[0].retry_after_ms
    assert len(descriptors()) == before


def descriptors() -> list[int]:
    return [int(path.name) for path in Path("/proc/self/fd").iterdir()]


@contextmanager
def no_descriptor_left() -> Iterator[None]:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = max(descriptors()) + 1
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))
    taken = []
    try:
        with suppress(OSError):
            while True:
                taken.append(os.dup(0))
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        for descriptor in taken:
            os.close(descriptor)


async def test_a_helper_lost_while_no_descriptor_is_left_is_not_lost_for_good(
    pool: HelperPool,
) -> None:
    helper = psutil.Process(pool.pid or 0).children()[0].children()[0]
    with no_descriptor_left():
        os.kill(helper.pid, signal.SIGKILL)
        await until(lambda: pool.pid is None)
    await pid_of(pool)
    await until(lambda: len(psutil.Process(pool.pid or 0).children()) == HELPERS)


async def test_a_client_that_left_keeps_no_place_of_its_key(pool: HelperPool) -> None:
    """Its key may have four jobs waiting, besides answers that engines have computed; it is not
    refused for those of clients that are gone."""
    tasks = Tasks()

    async def ask(what: str, key_id: str = "") -> None:
        await pool.run(job(what), key_id)

    busy = [tasks.start("busy", ask("endless"), ends=True) for _ in range(HELPERS)]
    await until(lambda: not any(link.is_idle for link in pool._links))
    gone = [tasks.start("gone", ask("good", "key"), ends=True) for _ in range(4)]
    await until(lambda: len(pool._waiting.get("key", ())) == 4)
    written = AnswerJob(b"", 1, route=Route.CHAT, request_id="r", checked=CheckedBody(), deltas={})

    async def write() -> None:
        await pool.run(written, "key")

    gone.append(tasks.start("answer", write(), ends=True))
    await until(lambda: len(pool._waiting.get("key", ())) == 5)
    for task in gone:
        task.cancel()
    await asyncio.gather(*gone, return_exceptions=True)
    assert "key" not in pool._waiting
    assert await pid_of(pool, key_id="key")
    await asyncio.gather(*busy, return_exceptions=True)
