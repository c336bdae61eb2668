"""Streams of real vLLM that have used their KV budget are parked while their worker is full, or
move to another worker, and say what they would have said alone."""

from __future__ import annotations

import asyncio
from typing import Any

import aiohttp
import pytest

from tests.e2e.prompts import BLOCK, prompts
from tests.e2e.test_moves import Stream, read
from tests.rigs.fleet import Fleet, fleet

pytestmark = [pytest.mark.long, pytest.mark.timeout(200)]

TOKENS, STREAMS = 500, 5
ENV = {
    "BATON_LIMITS__KV_BUDGET_MIB": "1",  # two blocks
    "BATON_ENGINE__KV_CACHE_MIB": "10",  # less than the streams need together
    "BATON_MODEL__MAX_MODEL_LEN": "1024",
    "BATON_KV__KEEP_MS": "30000",
}
PROMPT = max(prompts(14), key=len)
TEXTS = [PROMPT[60 * n : 60 * n + 60] for n in range(STREAMS)]


def test_over_budget_streams_are_parked_or_move_and_lose_nothing() -> None:
    with fleet("--mode", "replicated", "--decode", "2", env=ENV) as running:
        running.wait_ready()
        running.ctl("drain", "d1")
        alone = [asyncio.run(play(running, [text]))[0] for text in TEXTS]
        together = asyncio.run(play(running, TEXTS))
        assert [s.tokens for s in together] == [s.tokens for s in alone]
        parked = [row for s in together for row in moves(running, s) if row["parked"]]
        assert parked, "the streams had room for all that they may need"
        spread = asyncio.run(play(running, TEXTS[:2], resume=True))
        assert [s.tokens for s in spread] == [s.tokens for s in alone[:2]]
        moved = [row for s in spread for row in moves(running, s)]
        print(f"{len(parked)} parks", [row["pause_ms"] for row in parked], "moves", moved)
        assert moved, "d1 had more room"
        for row in moved:
            assert (row["source"], row["target"], row["recomputed_tokens"]) == ("d0", "d1", 1)
            assert not row["parked"]
            assert row["bytes"]
        for row in (*parked, *moved):
            assert row["reason"] == "budget"
            past = row["tokens"] % (2 * BLOCK)
            assert past < BLOCK or past >= 1.6 * BLOCK - 1, f"not within a block: {row}"


def moves(running: Fleet, stream: Stream) -> list[dict[str, Any]]:
    attempts = running.ctl("explain", stream.request_id)["attempts"]
    return [attempt["move"] for attempt in attempts if attempt["move"]]


async def play(running: Fleet, texts: list[list[int]], *, resume: bool = False) -> list[Stream]:
    """`resume`: d1 takes requests once all of them stream."""
    streams = [Stream() for _ in texts]
    async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(120)) as client:
        reading = [
            read(running, client, text, stream, TOKENS)
            for text, stream in zip(texts, streams, strict=True)
        ]
        await asyncio.gather(*reading, *([open_d1(running, streams)] if resume else []))
    return streams


async def open_d1(running: Fleet, streams: list[Stream]) -> None:
    while not all(stream.tokens for stream in streams):  # noqa: ASYNC110
        await asyncio.sleep(0.01)
    await asyncio.to_thread(running.ctl, "resume", "d1")
