"""Workers on real vLLM change their role both ways under load, without an engine start: every text
is that of an undisturbed fleet."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator

import aiohttp
import psutil
import pytest

from tests.e2e.prompts import prompts
from tests.e2e.test_moves import Stream, read
from tests.rigs.fleet import Fleet, fleet, wait_until

pytestmark = pytest.mark.timeout(600)

CHANGES = (("d0", "prefill"), ("p0", "decode"), ("d0", "decode"), ("p0", "prefill"))
CONTEXT = 400
STREAMS = 4
GROWTH_MAX = 1.1
PROMPT = max(prompts(14), key=len)


@pytest.fixture(scope="module")
def running() -> Iterator[Fleet]:
    with fleet("--prefill", "2", "--decode", "2") as there:
        yield there.wait_ready()


def has(running: Fleet, name: str, role: str) -> bool:
    (worker,) = [row for row in running.ctl("workers") if row["name"] == name]
    return (worker["role"], worker["state"]) == (role, "ready")


def ordered(running: Fleet, name: str, role: str) -> bool:
    """Whether it may take the role: another that has its own role must be ready, which on a machine
    that stands still for seconds is not always so."""
    try:
        running.ctl("role", name, role)
    except AssertionError as refused:
        if "wait" in str(refused):
            return False
        raise
    return True


def switch(running: Fleet) -> list[float]:
    took = []
    for name, role in CHANGES:
        began = time.monotonic()
        become(running, name, role)
        took.append(time.monotonic() - began)
    return took


def memory(running: Fleet) -> dict[str, int]:
    """Of the worker processes and all below them, in bytes."""
    found = {}
    for name, child in running.children().items():
        if name[0] in "pd":
            family = [child, *child.children(recursive=True)]
            found[name] = sum(psutil.Process(one.pid).memory_info().rss for one in family)
    return found


def test_roles_change_both_ways_under_load_and_every_text_is_the_same(running: Fleet) -> None:
    texts = [PROMPT[at : at + CONTEXT] for at in range(STREAMS)]
    alone = asyncio.run(round_of(running, texts))
    asyncio.run(round_of(running, texts))
    pids = {name: child.pid for name, child in running.children().items()}
    before = memory(running)
    rounds, took = asyncio.run(under_load(running, texts))
    print(f"{len(rounds)} rounds of {STREAMS} streams; seconds of each change:", took)
    for streams in rounds:
        assert [stream.tokens for stream in streams] == [stream.tokens for stream in alone]
    assert {name: child.pid for name, child in running.children().items()} == pids
    after = memory(running)
    grown = {name: round(after[name] / before[name], 3) for name in before}
    print("memory after four changes, of that before:", grown)
    assert max(grown.values()) <= GROWTH_MAX


@pytest.mark.long
def test_a_mixed_worker_hands_over_takes_over_and_computes_its_own_prompts(
    running: Fleet,
) -> None:
    """The texts are those of workers that saw nothing of it."""
    handed_over = [PROMPT[at : at + CONTEXT] for at in (20, 21)]
    its_own = [PROMPT[at : at + CONTEXT] for at in (30, 31)]
    become(running, "d0", "mixed")
    drain(running, "p0", "p1")
    running.ctl("policy", "round_robin", "remote_prefill=always")  # one stream on each
    before = handoffs(running)
    left = asyncio.run(left_midway(running, handed_over))
    wait_until("its KV went to d1", lambda: handoffs(running) > before, 10.0)
    told = [running.ctl("explain", stream.request_id)["attempts"] for stream in left]
    assert any(len(attempts) > 1 for attempts in told), "and came back with the streams"
    stayed = asyncio.run(round_of(running, its_own))
    for stream in stayed:
        (attempt,) = running.ctl("explain", stream.request_id)["attempts"]
        assert any("d0 is mixed" in sentence for sentence in attempt["sentences"])
    for name in ("p0", "p1", "d1"):
        running.ctl("resume", name)
    become(running, "p0", "decode")
    drain(running, "d0", "d1")
    alone = asyncio.run(round_of(running, handed_over + its_own))
    assert [stream.tokens for stream in left + stayed] == [stream.tokens for stream in alone]


def become(running: Fleet, name: str, role: str) -> None:
    wait_until(f"{name} may become it", lambda: ordered(running, name, role), 60.0)
    wait_until(f"{name} is a {role} worker", lambda: has(running, name, role), 60.0)


def drain(running: Fleet, *names: str) -> None:
    for name in names:
        running.ctl("drain", name)


def handoffs(running: Fleet) -> int:
    """From d0 to d1."""
    pairs = running.ctl("pairs")
    return sum(row["handoffs"] for row in pairs if (row["prefill"], row["decode"]) == ("d0", "d1"))


async def left_midway(running: Fleet, texts: list[list[int]]) -> list[Stream]:
    """d1 is drained once all have begun."""
    streams = [Stream() for _ in texts]

    async def leave() -> None:
        while not all(stream.tokens for stream in streams):  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        await asyncio.to_thread(drain, running, "d1")

    await asyncio.gather(read_all(running, texts, streams), leave())
    return streams


async def under_load(running: Fleet, texts: list[list[int]]) -> tuple[list[list[Stream]], list]:  # type: ignore[type-arg]
    """Rounds of streams follow each other until all roles have changed."""
    rounds = []
    async with asyncio.TaskGroup() as group:
        changing = group.create_task(asyncio.to_thread(switch, running))
        while not changing.done():
            rounds.append(await round_of(running, texts))
    return rounds, [round(seconds, 2) for seconds in changing.result()]


async def round_of(running: Fleet, texts: list[list[int]]) -> list[Stream]:
    streams = [Stream() for _ in texts]
    await read_all(running, texts, streams)
    return streams


async def read_all(running: Fleet, texts: list[list[int]], streams: list[Stream]) -> None:
    async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(240)) as client:
        pairs = zip(texts, streams, strict=True)
        await asyncio.gather(*(read(running, client, text, stream) for text, stream in pairs))
