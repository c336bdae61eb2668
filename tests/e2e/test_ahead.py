"""On real vLLM: a long prompt is computed while streams have all slots of the decode worker, goes
on there once the first of them has ended, and says what it says in an idle fleet."""

from __future__ import annotations

import asyncio
import itertools

import aiohttp
import pytest

from tests.e2e.test_moves import PROMPT, Stream, read
from tests.rigs.fleet import Fleet, fleet

pytestmark = [pytest.mark.long, pytest.mark.timeout(200)]

SLOTS, LONG, SHORT = 4, 6_000, 60
ENV = {
    "BATON_ENGINE__MAX_NUM_SEQS": str(SLOTS),
    "BATON_ROUTER__REMOTE_PREFILL": "always",
    "BATON_MODEL__DTYPE": "float32",
}
IDS = list(itertools.islice(itertools.cycle(PROMPT), 4 * LONG))


def test_a_long_prompt_is_computed_ahead_of_its_slot_and_its_text_is_the_same() -> None:
    with fleet("--prefill", "1", "--decode", "1", env=ENV) as running:
        running.wait_ready()
        for n in range(2 * SLOTS):  # from which the router learns
            asyncio.run(play(running, [(IDS[n : n + SHORT], 40)]))
        asyncio.run(play(running, [(IDS[LONG + 1 : 2 * LONG], 4)]))
        streams = [(IDS[7 * n : 7 * n + SHORT], 60 + 20 * n) for n in range(SLOTS)]
        prompt = IDS[2 * LONG + 2 : 3 * LONG]
        together = asyncio.run(play(running, [*streams, (prompt, 8)], last_after_all=True))
        (told,) = running.ctl("explain", together[-1].request_id)["attempts"]
        assert any("begins ahead of its slot" in sentence for sentence in told["sentences"]), told
        assert told["kv"]["complete"]
        assert told["kv"]["payload_bytes"]
        (alone,) = asyncio.run(play(running, [(prompt, 8)]))
        assert together[-1].tokens == alone.tokens
        assert [len(stream.tokens) for stream in together] == [60, 80, 100, 120, 8]
        totals = running.ctl("status")["totals"]
        assert (totals["placed_ahead"], totals["failed"]) == (1, 0)
        print(told["phases"], told["sentences"])


async def play(
    running: Fleet, asked: list[tuple[list[int], int]], *, last_after_all: bool = False
) -> list[Stream]:
    """`last_after_all`: the last is asked for once all others stream."""
    streams = [Stream() for _ in asked]
    first = streams[:-1] if last_after_all else []

    async def one(stream: Stream, ids: list[int], tokens: int) -> None:
        while stream is streams[-1] and not all(other.tokens for other in first):  # noqa: ASYNC110
            await asyncio.sleep(0.005)
        await read(running, client, ids, stream, tokens)

    async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(120)) as client:
        await asyncio.gather(
            *[one(stream, *ask) for stream, ask in zip(streams, asked, strict=True)]
        )
    return streams
