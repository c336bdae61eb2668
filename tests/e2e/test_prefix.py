"""A prompt follows its prefix over real vLLM: told by KV events, cached there, per tenant."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

import openai
import pytest

from tests.rigs.fleet import Fleet, fleet, wait_until
from tests.rigs.processes import add_key

pytestmark = [pytest.mark.long, pytest.mark.timeout(400)]

BLOCK = 128
PREFIX = 1_000
WHOLE = PREFIX // BLOCK * BLOCK
ANSWER = 60


@pytest.fixture(scope="module")
def keys(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """A key file, and a key of two tenants."""
    file = tmp_path_factory.mktemp("keys") / "keys.json"
    return {"file": str(file)} | {tenant: add_key(file, tenant) for tenant in ("a", "b")}


@pytest.fixture(scope="module")
def running(keys: dict[str, str]) -> Iterator[Fleet]:
    with fleet("--prefill", "2", "--decode", "1", "--keys", keys["file"]) as up:
        yield up.wait_ready()


class Client:
    def __init__(self, running: Fleet, key: str) -> None:
        self._running = running
        self._api = openai.OpenAI(base_url=f"{running.url}/v1", api_key=key, max_retries=0)

    def ask(self, prompt: list[int]) -> dict[str, Any]:
        """What the router tells of it once P has reported too, which may be after the answer."""
        answer = self._api.completions.create(
            model="baton-tiny", prompt=prompt, max_tokens=ANSWER, extra_body={"ignore_eos": True}
        )

        def told() -> dict[str, Any]:
            attempt: dict[str, Any] = self._running.ctl("explain", answer.id)["attempts"][0]
            return attempt

        wait_until(
            "P has reported", lambda: "tokens were cached" in " ".join(told()["sentences"]), 60
        )
        return told()


def prefix(seed: int) -> list[int]:
    dice = random.Random(seed)
    return [dice.randrange(1, 250) for _ in range(PREFIX)]


def hashes(running: Fleet) -> dict[str, int]:
    return {row["name"]: row["prefix_hashes"] for row in running.ctl("workers")}


@pytest.mark.parametrize("policy", ["prefix_affinity", "cost"])
def test_the_second_request_goes_where_the_first_went(
    running: Fleet, keys: dict[str, str], policy: str
) -> None:
    client = Client(running, keys["a"])
    seeds = range(4) if policy == "cost" else range(10, 14)
    before = hashes(running)["d0"]
    running.ctl("policy", "round_robin")
    homes = {seed: client.ask([*prefix(seed), seed])["prefill"] for seed in seeds}
    assert set(homes.values()) == {"p0", "p1"}
    running.ctl("policy", policy)
    for seed in reversed(seeds):
        told = client.ask([*prefix(seed), 200, 201, 202])
        assert told["prefill"] == homes[seed]
        story = " ".join(told["sentences"])
        assert f"{WHOLE} of {PREFIX + 3} tokens were cached" in story, story
        assert told["kv"]["blocks"] == 1, "d0 has the rest"
    blocks = len(seeds) * ((PREFIX + ANSWER) // BLOCK + 1)
    wait_until(
        "d0 has told of both prompts and answers, so that the next test can count its own",
        lambda: hashes(running)["d0"] == before + blocks,
        30,
    )


def test_engines_tell_what_no_placement_could_know(running: Fleet, keys: dict[str, str]) -> None:
    """The block that the answer fills is known by the engine's events only."""
    before = hashes(running)
    Client(running, keys["a"]).ask(prefix(50))
    blocks = (PREFIX + ANSWER) // BLOCK
    assert blocks > WHOLE // BLOCK
    wait_until(
        "d0 has told of the block that its answer filled",
        lambda: hashes(running)["d0"] == before["d0"] + blocks,
    )


def test_another_tenant_s_prefix_is_neither_found_nor_used(
    running: Fleet, keys: dict[str, str]
) -> None:
    running.ctl("policy", "prefix_affinity")
    first = Client(running, keys["a"]).ask(prefix(60))
    other = Client(running, keys["b"]).ask(prefix(60))
    assert "no prefill worker that may take more has its prefix" in " ".join(other["sentences"])
    assert f"0 of {PREFIX} tokens were cached" in " ".join(other["sentences"])
    again = Client(running, keys["a"]).ask(prefix(60))
    assert f"{WHOLE} of {PREFIX} tokens were cached" in " ".join(again["sentences"])
    assert again["prefill"] == first["prefill"]


def test_a_restarted_router_learns_again_what_engines_hold(
    running: Fleet, keys: dict[str, str]
) -> None:
    client = Client(running, keys["a"])
    client.ask(prefix(70))
    before = hashes(running)
    running.children()["r0"].kill()
    running.wait_for_line("r0: .*starting it again")

    def known_again() -> bool:
        try:
            now = hashes(running)
        except AssertionError:
            return False
        return now.keys() == before.keys() and all(now[name] >= before[name] for name in before)

    wait_until("the new router knows what the old one knew", known_again, 30)
