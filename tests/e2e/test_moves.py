"""Streams of real vLLM leave a worker that is drained, evicted or stopped, or because an operator
moves them, and take their KV along."""

from __future__ import annotations

import asyncio
import json
import signal
import time
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass, field
from typing import Any

import aiohttp
import pytest

from tests.e2e.prompts import BLOCK, prompts
from tests.rigs.fleet import Fleet, fleet, wait_until

pytestmark = pytest.mark.timeout(300)

STREAMS = 8
TOKENS = 800
CONTEXT = 1_500
REASON = {"drain": "drain", "stop": "stop", "move": "operator", "evict": "evict"}
OTHER_WAYS = [pytest.param(how, marks=pytest.mark.long) for how in ("move", "evict", "stop")]
PROMPT = max(prompts(14), key=len)
AT_ONCE = {"BATON_KV__KEEP_MS": "30000"}
"""Even a machine that stands still for seconds loses no KV."""
DRAFTS = {"BATON_SPECULATION__METHOD": "ngram", "BATON_SPECULATION__NGRAM_MIN": "1"}
AHEAD = {**AT_ONCE, "BATON_KV__STORE__RAM_MIB": "128", "BATON_KV__COPY_AHEAD_MS": "30000"}


@dataclass
class Stream:
    """What one client got."""

    request_id: str = ""
    tokens: list[int] = field(default_factory=list)
    gap: float = 0.0
    """The longest pause between two deltas, in seconds."""


@pytest.fixture(scope="module")
def running(request: pytest.FixtureRequest) -> Iterator[Fleet]:
    """`param`: its environment. One fleet for all tests with the same."""
    with fleet("--prefill", "1", "--decode", "2", env=request.param) as there:
        yield there.wait_ready()


def with_fleet(env: dict[str, str], name: str) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("running", [env], indirect=True, ids=[name], scope="module")


@with_fleet(AT_ONCE, "at-once")
@pytest.mark.parametrize("how", ["drain", *OTHER_WAYS])
def test_streams_go_on_elsewhere_from_their_kv(running: Fleet, how: str) -> None:
    for row in left(running, how):
        move, last = row["attempts"][-1]["move"], row["attempts"][-1]
        assert move["bytes"] > 0
        assert not any("were copied" in sentence for sentence in last["sentences"])


@with_fleet(AHEAD, "ahead")
@pytest.mark.parametrize("how", ["drain", "move"])
@pytest.mark.long
def test_streams_that_were_copied_ahead_take_their_last_blocks_along(
    running: Fleet, how: str
) -> None:
    whole = CONTEXT // BLOCK
    before = loaded_ahead(running)
    moved = left(running, how)
    for row in moved:
        last = row["attempts"][-1]
        assert any("full blocks were copied to d1" in sentence for sentence in last["sentences"])
        assert last["kv"]["blocks"] < whole // 2, "the handoff brought what was copied"
    enough = before + len(moved) * whole // 2
    wait_until("the engine of d1 got them first", lambda: loaded_ahead(running) >= enough, 10)


@with_fleet({**AHEAD, **DRAFTS}, "ahead-and-drafts")
@pytest.mark.long
def test_streams_that_get_bursts_take_their_blocks_along(running: Fleet) -> None:
    """A block that drafts have filled is copied when its tokens are certain."""
    for row in left(running, "drain"):
        assert any("full blocks were copied to d1" in s for s in row["attempts"][-1]["sentences"])
    assert any(row["accepted"] > 0 for row in running.ctl("workers"))


def loaded_ahead(running: Fleet) -> int:
    """Blocks that the engine of d1 got before the streams came."""
    (worker,) = [worker for worker in running.ctl("kv")["workers"] if worker["name"] == "d1"]
    blocks: int = worker["counts"].get("store_ahead", 0)
    return blocks


def left(running: Fleet, how: str) -> list[dict[str, Any]]:
    """What `explain` tells of the streams that left d0, after it was seen that they lost nothing
    and computed one token again."""
    first = list(REASON).index(how) * STREAMS
    texts = [PROMPT[at : at + CONTEXT] for at in range(first, first + STREAMS)]
    running.ctl("resume", "d0")
    running.ctl("drain", "d1")
    alone = asyncio.run(play(running, texts))
    before = asyncio.run(play(running, texts, leave=(running, how)))
    assert [stream.tokens for stream in before] == [stream.tokens for stream in alone]
    told = [running.ctl("explain", stream.request_id) for stream in before]
    moved = [row for row in told if len(row["attempts"]) > 1]
    assert moved, "no stream was still running when it was to leave"
    for row in moved:
        last = row["attempts"][-1]
        assert any("its KV comes from d0" in sentence for sentence in last["sentences"]), row
        prompt, cached = last["prompt_tokens"], last["cached_tokens"]["decode"]
        assert cached == prompt - 1, f"more than the last token was computed again: {row}"
        move = last["move"]
        assert (move["reason"], move["source"], move["target"]) == (REASON[how], "d0", "d1")
        assert (move["tokens"], move["recomputed_tokens"]) == (prompt, 1)
    gaps = sorted(
        (len(row["attempts"]), round(s.gap, 3)) for row, s in zip(told, before, strict=True)
    )
    print("attempts and longest gap of each stream:", gaps)
    print("pauses in ms:", [row["attempts"][-1]["move"]["pause_ms"] for row in moved])
    return moved


async def play(
    running: Fleet, texts: list[list[int]], leave: tuple[Fleet, str] | None = None
) -> list[Stream]:
    streams = [Stream() for _ in texts]
    async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(120)) as client:
        reading = [
            read(running, client, text, stream) for text, stream in zip(texts, streams, strict=True)
        ]
        await asyncio.gather(*reading, *([empty_midway(streams, *leave)] if leave else []))
    return streams


async def empty_midway(streams: list[Stream], running: Fleet, how: str) -> None:
    """Once every stream has a part of its tokens, d1 may have them."""
    while min(len(stream.tokens) for stream in streams) < TOKENS // 16:  # noqa: ASYNC110
        await asyncio.sleep(0.01)
    await asyncio.to_thread(empty, running, how)


def empty(running: Fleet, how: str) -> None:
    running.ctl("resume", "d1")
    if how == "move":
        streams = [row for row in running.ctl("requests") if row["decode"] == "d0"]
        for row in streams:
            running.ctl("move", row["request_id"], "to=d1")
        return
    if how == "stop":
        running.children()["d0"].send_signal(signal.SIGTERM)
        return
    began = time.monotonic()
    told = running.ctl(how, "d0")
    assert not told.get("requests_dropped"), told
    wait_until("d0 is empty", lambda: not held(running), 60)
    print(f"d0 was empty after {time.monotonic() - began:.2f} s")


def held(running: Fleet) -> int:
    (row,) = [row for row in running.ctl("workers") if row["name"] == "d0"]
    requests: int = row["requests"]
    return requests


async def read(
    running: Fleet,
    client: aiohttp.ClientSession,
    text: list[int],
    stream: Stream,
    tokens: int = TOKENS,
) -> None:
    body = {
        "model": "baton-tiny",
        "prompt": text,
        "max_tokens": tokens,
        "temperature": 0,
        "ignore_eos": True,
        "return_token_ids": True,
        "stream": True,
    }
    last = 0.0
    async with client.post(f"{running.url}/v1/completions", json=body) as answer:
        assert answer.status == 200, await answer.text()
        async for chunk in chunks(answer):
            stream.request_id = chunk["id"].split("-", 1)[1]
            assert "error" not in chunk, chunk
            ids = chunk["choices"][0].get("token_ids") or []
            now = time.monotonic()
            stream.gap = max(stream.gap, now - last) if last and ids else stream.gap
            last = now if ids else last
            stream.tokens += ids


async def chunks(answer: aiohttp.ClientResponse) -> AsyncIterator[dict]:  # type: ignore[type-arg]
    async for line in answer.content:
        if line.startswith(b"data: {"):
            yield json.loads(line.removeprefix(b"data: "))
