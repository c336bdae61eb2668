"""A fleet of real daemons, on simulated engines, whose workers change their role while they run."""

from __future__ import annotations

import asyncio
import signal
import time
from collections.abc import Iterator

import psutil
import pytest

from tests.rigs.fleet import Fleet, fleet, wait_until
from tests.rigs.load import Answer, Ask, Load, faults_of

FLAGS = ("--engine", "sim", "--prefill", "2", "--decode", "3")
IDLE_SECONDS, BUSY_SECONDS = 1.0, 2.0
STREAMS = 16
CHANGES = (("d0", "prefill"), ("p0", "decode"), ("d0", "decode"), ("p0", "prefill"))


@pytest.fixture
def running() -> Iterator[Fleet]:
    with fleet(*FLAGS) as up:
        yield up.wait_ready()


def row(running: Fleet, name: str) -> dict[str, object]:
    return next(row for row in running.ctl("workers") if row["name"] == name)


def held(running: Fleet) -> int:
    return int(str(row(running, "d0")["requests"]))


def has(running: Fleet, name: str, role: str) -> bool:
    worker = row(running, name)
    return (worker["role"], worker["state"]) == (role, "ready")


def switch(running: Fleet, name: str, role: str) -> float:
    """Seconds until it is ready in the role."""
    began = time.monotonic()
    running.ctl("role", name, role)
    wait_until(f"{name} is a {role} worker", lambda: has(running, name, role))
    return time.monotonic() - began


def test_an_idle_worker_takes_each_role_and_serves(running: Fleet) -> None:
    pids = {name: child.pid for name, child in running.children().items()}
    memory = psutil.Process(pids["d0"]).memory_info().rss
    took = [switch(running, name, role) for name, role in CHANGES[:2]]
    assert "decode in its file, prefill for" in running.told("workers")
    assert faults_of([asyncio.run(Load(running.url, rate=1.0).one())]) == []
    took += [switch(running, name, role) for name, role in CHANGES[2:]]
    print("seconds of each change, idle:", [round(seconds, 3) for seconds in took])
    assert max(took) <= IDLE_SECONDS
    assert {name: child.pid for name, child in running.children().items()} == pids
    grown = psutil.Process(pids["d0"]).memory_info().rss / memory
    print(f"memory of d0 after its changes: {grown:.3f} of that before")
    told = [event["event"] for event in running.ctl("events")["events"]]
    assert told.count("role.ordered") == told.count("role.changed") == len(CHANGES)


def test_sixteen_streams_move_and_none_fails(running: Fleet) -> None:
    took = asyncio.run(switch_under_streams(running))
    print(f"seconds of a change with {STREAMS} streams: {took:.2f}")
    assert took <= BUSY_SECONDS


def order_others(running: Fleet, verb: str) -> None:
    for name in ("d1", "d2"):
        running.ctl(verb, name)


async def switch_under_streams(running: Fleet) -> float:
    """All of them run on d0, because the others are drained until then."""
    load = Load(running.url, rate=1.0, ask=Ask((40, 60), max_tokens=800))
    order_others(running, "drain")
    async with asyncio.TaskGroup() as group:
        for _ in range(STREAMS):
            group.create_task(load.one())
        await asyncio.to_thread(wait_until, "d0 has streams", lambda: held(running) >= STREAMS)
        await asyncio.to_thread(order_others, running, "resume")
        took = await asyncio.to_thread(switch, running, "d0", "prefill")
    assert faults_of(load.answers) == []
    assert not any(answer.refused for answer in load.answers)
    return took


def test_roles_change_back_and_forth_under_load_and_nothing_fails(running: Fleet) -> None:
    answers = asyncio.run(switch_under_load(running))
    assert faults_of(answers) == []
    assert not any(answer.refused for answer in answers)
    print(len(answers), "requests while four roles changed")


async def switch_under_load(running: Fleet) -> list[Answer]:
    load = Load(running.url, rate=30.0, ask=Ask((40, 200), max_tokens=24))
    async with asyncio.TaskGroup() as group:
        group.create_task(load.run())
        for name, role in CHANGES:
            await asyncio.to_thread(switch, running, name, role)
        load.stop()
    return load.answers


def test_a_worker_that_died_is_back_in_the_role_of_its_file(running: Fleet) -> None:
    switch(running, "d0", "prefill")
    running.children()["d0"].send_signal(signal.SIGKILL)
    wait_until("d0 decodes again", lambda: has(running, "d0", "decode"), 30.0)
    assert faults_of([asyncio.run(Load(running.url, rate=1.0).one())]) == []


def test_a_router_that_dies_in_the_middle_learns_the_truth_from_the_worker(
    running: Fleet,
) -> None:
    asyncio.run(switch_over_a_router(running))


async def switch_over_a_router(running: Fleet) -> None:
    load = Load(running.url, rate=1.0, ask=Ask((40, 60), max_tokens=400))
    async with asyncio.TaskGroup() as group:
        for _ in range(12):
            group.create_task(load.one())
        await asyncio.to_thread(wait_until, "d0 has streams", lambda: bool(held(running)))
        await asyncio.to_thread(wait_until, "d0 has its order", lambda: confirmed(running), 30.0)
        running.children()["r0"].send_signal(signal.SIGKILL)
        await asyncio.to_thread(wait_until, "d0 prefills", lambda: found(running), 60.0)
    assert faults_of(load.answers) == []


def confirmed(running: Fleet) -> bool:
    """Orders it, too. A router that dies before its worker has the order takes it to its grave."""
    return bool(running.ctl("role", "d0", "prefill")["confirmed"])


def found(running: Fleet) -> bool:
    """Also while no router answers, or knows the worker."""
    try:
        return has(running, "d0", "prefill")
    except (AssertionError, StopIteration):
        return False
