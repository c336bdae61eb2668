"""A stream of real vLLM whose decode worker is killed goes on from the copies of its blocks in the
store of another."""

from __future__ import annotations

import asyncio
from typing import Any

import aiohttp
import pytest

from tests.e2e.prompts import BLOCK, prompts
from tests.e2e.reference import plain_answers
from tests.e2e.test_moves import Stream, read
from tests.rigs.fleet import Fleet, fleet, wait_until

pytestmark = [pytest.mark.long, pytest.mark.timeout(400)]

PROMPT = max(prompts(14), key=len)[:1_500]
TOKENS, KILL_AT = 800, 500
STORES = {"BATON_KV__STORE__RAM_MIB": "64"}
COPIES = {**STORES, "BATON_KV__CHECKPOINT__POLICY": "all"}


@pytest.fixture(scope="module")
def plain() -> list[int]:
    (tokens,) = plain_answers([PROMPT], TOKENS)
    assert len(set(tokens)) > 8, "the model repeats itself"
    return tokens


@pytest.mark.parametrize("env", [COPIES, STORES], ids=["copies", "none"])
def test_a_stream_goes_on_from_its_copies_when_its_worker_is_killed(
    env: dict[str, str], plain: list[int]
) -> None:
    with fleet("--prefill", "1", "--decode", "2", env=env) as running:
        running.wait_ready()
        stream = asyncio.run(play(running))
        assert stream.tokens == plain
        last = explained(running, stream.request_id)[-1]
        again = last["prompt_tokens"] - last["cached_tokens"]["decode"]
        story = " ".join(last["sentences"])
        print(f"gap {stream.gap * 1000:.0f} ms, {again} of {last['prompt_tokens']} tokens again")
        print(story)
        if env is STORES:
            assert "copies" not in story
            return
        assert again <= 2 * BLOCK
        assert f"{again} were computed again" in story
        assert "its blocks at d" in story


def explained(running: Fleet, request_id: str) -> list[dict[str, Any]]:
    attempts: list[dict[str, Any]] = running.ctl("explain", request_id)["attempts"]
    assert len(attempts) >= 2, "the gateway may find its worker lost before the router does"
    return attempts


async def play(running: Fleet) -> Stream:
    stream = Stream()
    async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(120)) as client:
        reading = read(running, client, PROMPT, stream, TOKENS)
        await asyncio.gather(reading, asyncio.to_thread(kill_midway, running, stream))
    return stream


def kill_midway(running: Fleet, stream: Stream) -> None:
    wait_until("it has some tokens", lambda: len(stream.tokens) >= KILL_AT, 60)
    (row,) = running.ctl("requests")
    print("copies at the kill:", row["copies"])
    running.children()[row["decode"]].kill()
