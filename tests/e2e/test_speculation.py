"""Decode workers of real vLLM that draft tokens are killed in the middle of bursts, and told apart
by what they accepted."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Iterator
from typing import Any

import aiohttp
import pytest

from tests.e2e.prompts import prompts
from tests.e2e.test_moves import chunks
from tests.rigs.fleet import Fleet, fleet, wait_until

pytestmark = [pytest.mark.long, pytest.mark.timeout(300)]

TOKENS, KILLED_AT = 240, 40
ACCEPTED = "baton_worker_tokens_accepted_total"
SPECULATION = {
    "BATON_SPECULATION__METHOD": "ngram",
    "BATON_SPECULATION__NGRAM_MIN": "1",
    "BATON_MODEL__DTYPE": "float32",
    "BATON_ROUTER__REMOTE_PREFILL": "always",
    "BATON_ROUTER__ADMISSION__CAPACITY_FULL": "0.4",
}
FEW = list(range(101, 104))
"""So few allowed tokens make a text that repeats itself, and nearly every step a burst."""
GREEDY: dict[str, Any] = {"temperature": 0}
SAMPLINGS: list[dict[str, Any]] = [
    {"temperature": 0, "allowed_token_ids": FEW},
    GREEDY,
    {"temperature": 1.2, "seed": 11},
    {"temperature": 0, "frequency_penalty": 0.5},
]
PROMPT = max(prompts(14), key=len)[:500]


@pytest.fixture(scope="module")
def running() -> Iterator[Fleet]:
    with fleet("--prefill", "1", "--decode", "2", env=SPECULATION) as there:
        yield there.wait_ready()


class Stream:
    """What one client got."""

    def __init__(self) -> None:
        self.tokens: list[int] = []
        self.request_id = self.finish = ""
        self.usage: dict[str, Any] = {}

    def got(self, chunk: dict[str, Any]) -> None:
        assert "error" not in chunk, chunk
        self.request_id = chunk["id"].split("-", 1)[1]
        self.usage = chunk.get("usage") or self.usage
        for choice in chunk["choices"]:
            self.tokens += choice.get("token_ids") or []
            self.finish = choice["finish_reason"] or self.finish


async def read(running: Fleet, number: int, stream: Stream) -> None:
    body = {
        "model": "baton-tiny",
        "prompt": PROMPT[number * 20 :],
        "max_tokens": TOKENS,
        "ignore_eos": True,
        "return_token_ids": True,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    async with (
        aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(120)) as client,
        client.post(f"{running.url}/v1/completions", json=body | SAMPLINGS[number]) as answer,
    ):
        assert answer.status == 200, await answer.text()
        async for chunk in chunks(answer):
            stream.got(chunk)


async def play(running: Fleet, kill_at: int = 0) -> list[Stream]:
    """One stream of each sampling. Once all have so many tokens, d0 is killed, if any runs
    there."""
    streams = [Stream() for _ in SAMPLINGS]

    async def kill() -> None:
        while min(len(stream.tokens) for stream in streams) < kill_at:  # noqa: ASYNC110
            await asyncio.sleep(0.005)
        running.children()["d0"].send_signal(signal.SIGKILL)

    reading = [read(running, number, stream) for number, stream in enumerate(streams)]
    await asyncio.gather(*reading, *([kill()] if kill_at else []))
    return streams


def test_killed_in_the_middle_of_bursts_streams_go_on_exactly(running: Fleet) -> None:
    alone = asyncio.run(play(running))
    accepted = [row for row in running.ctl("workers") if row["accepted"] >= 0]
    assert accepted, "nobody told of drafts"
    # A chunk of several tokens is no proof of it: on a busy machine it holds several steps.
    wait_until("drafts are accepted", lambda: running.counted(ACCEPTED) > TOKENS // 4)
    moved = 0
    running.ctl("drain", "d1")
    began = asyncio.run(begin_on_d0(running, KILLED_AT))
    for number, (stream, whole) in enumerate(zip(began, alone, strict=True)):
        assert stream.tokens == whole.tokens, SAMPLINGS[number]
        assert stream.finish == "length"
        assert stream.usage["completion_tokens"] == TOKENS
        assert stream.usage["prompt_tokens"] == len(PROMPT[number * 20 :])
        moved += len(running.ctl("explain", stream.request_id)["attempts"]) > 1
    assert moved >= len(SAMPLINGS) // 2, "hardly a stream was killed"


async def begin_on_d0(running: Fleet, at: int) -> list[Stream]:
    """All streams begin on d0, which is killed at that many tokens; d1 takes them then."""

    async def let_d1_in() -> None:
        while not await all_on_d0(running):  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        await asyncio.to_thread(running.ctl, "resume", "d1")

    streams, _ = await asyncio.gather(play(running, at), let_d1_in())
    return streams


async def all_on_d0(running: Fleet) -> bool:
    rows = await asyncio.to_thread(running.ctl, "requests")
    return [row["decode"] for row in rows] == ["d0"] * len(SAMPLINGS)
