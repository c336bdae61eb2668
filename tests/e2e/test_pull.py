"""A whole fleet on real vLLM: the router learns what stores have, and names one where it pays."""

from __future__ import annotations

import random
from typing import Any

import openai
import pytest

from tests.rigs.fleet import Fleet, fleet, wait_until

pytestmark = [pytest.mark.long, pytest.mark.timeout(400)]

BLOCK = 128
BLOCKS = 12
ANSWER = 60
"""Tokens; P has reported by then, or what it computed is not asked of it any more."""
STORES = {
    "BATON_KV__STORE__RAM_MIB": "64",
    "BATON_ROUTER__POLICY": "round_robin",
    "BATON_DECODE__D0__KV__STORE__RAM_MIB": "0",
}
"""The decode worker stores what it gets, too, and would be named as the source now and then."""


def ask(running: Fleet, prompt: list[int]) -> tuple[str, dict[str, Any]]:
    """The answer, and what the router tells of it once P has reported too."""
    api = openai.OpenAI(base_url=f"{running.url}/v1", api_key="-", max_retries=0)
    answer = api.completions.create(
        model="baton-tiny",
        prompt=prompt,
        max_tokens=ANSWER,
        temperature=0.0,
        extra_body={"ignore_eos": True},
    )

    def told() -> dict[str, Any]:
        attempt: dict[str, Any] = running.ctl("explain", answer.id)["attempts"][0]
        return attempt

    wait_until("P has reported", lambda: "tokens were cached" in " ".join(told()["sentences"]), 60)
    return answer.choices[0].text, told()


def counts(running: Fleet, name: str) -> dict[str, int]:
    workers = {worker["name"]: worker for worker in running.ctl("kv")["workers"]}
    found: dict[str, int] = workers[name]["counts"]
    return found


def stored(running: Fleet) -> dict[str, int]:
    return {row["name"]: row["stored_hashes"] for row in running.ctl("workers")}


def test_the_next_prompt_with_this_prefix_is_pulled_and_answered_alike() -> None:
    """The workers are used in turn, so the second prompt comes to the one without the prefix."""
    draw = random.Random(5)
    prefix = [draw.randrange(1, 250) for _ in range(BLOCKS * BLOCK)]
    prompt = [*prefix, 7, 8, 9]
    with fleet("--prefill", "2", "--decode", "1", env=STORES) as running:
        running.wait_ready()
        text, first = ask(running, prompt)
        home = first["prefill"]
        wait_until("it is stored", lambda: counts(running, home)["store_held"] >= BLOCKS)
        wait_until("the router knows", lambda: stored(running)[home] >= BLOCKS)
        same, second = ask(running, prompt)
        other, story = second["prefill"], " ".join(second["sentences"])
        assert (same, other == home) == (text, False)
        assert f"{other} pulls {BLOCKS * BLOCK} tokens out of the store of {home}: " in story
        assert f"{other} pulled {BLOCKS} KV blocks" in story
        assert f"{BLOCKS * BLOCK} of {len(prompt)} tokens were cached" in story
        wait_until(
            "both ends have counted it",
            lambda: (
                counts(running, home)["store_served"] == BLOCKS
                and counts(running, other)["store_pulled"] == BLOCKS
            ),
        )
