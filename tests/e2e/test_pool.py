"""A whole fleet on real vLLM with a pool: what a worker computed outlives it."""

from __future__ import annotations

import asyncio
import os
import random
import signal
from pathlib import Path
from typing import Any

import openai
import pytest

from tests.rigs.browser import chromium, installed
from tests.rigs.fleet import Fleet, fleet, wait_until

pytestmark = [pytest.mark.long, pytest.mark.timeout(400)]

BLOCK = 128
BLOCKS = 12
ANSWER = 60
"""Tokens; P has reported by then, or what it computed is not asked of it any more."""
SMALL_MIB = 16
"""A pool of 32 blocks."""
STORES = {
    "BATON_KV__STORE__RAM_MIB": "64",
    "BATON_DECODE__D0__KV__STORE__RAM_MIB": "0",
    "BATON_ROUTER__POLICY": "round_robin",
}
"""D has none, because a decode worker's store would be a source as good as the pool."""


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
    return answer.choices[0].text, told() | {"id": answer.id}


def row(running: Fleet, name: str) -> dict[str, Any]:
    rows = {worker["name"]: worker for worker in running.ctl("workers")}
    found: dict[str, Any] = rows[name]
    return found


def counts(running: Fleet, name: str) -> dict[str, int]:
    workers = {worker["name"]: worker for worker in running.ctl("kv")["workers"]}
    found: dict[str, int] = workers[name]["counts"]
    return found


def kill(running: Fleet, name: str) -> None:
    """Returns when the router has lost it."""
    incarnation = row(running, name)["incarnation"]
    os.kill(running.children()[name].pid, signal.SIGKILL)

    def lost() -> bool:
        rows = [worker for worker in running.ctl("workers") if worker["name"] == name]
        return all(w["state"] == "gone" or w["incarnation"] != incarnation for w in rows)

    wait_until(f"{name} is gone", lost)


def test_a_prefix_outlives_the_worker_that_computed_it_and_the_pool_s_death_costs_only_time() -> (
    None
):
    draw = random.Random(7)
    prefix = [draw.randrange(1, 250) for _ in range(BLOCKS * BLOCK)]
    prompt = [*prefix, 7, 8, 9]
    with fleet("--prefill", "2", "--decode", "1", "--pools", "1", env=STORES) as running:
        running.wait_ready()
        wait_until("the pool knows the layout", lambda: bool(row(running, "s0")["fingerprint"]))
        text, first = ask(running, prompt)
        home = first["prefill"]
        wait_until("the pool has it", lambda: row(running, "s0")["stored_hashes"] >= BLOCKS)
        kill(running, home)
        same, second = ask(running, prompt)
        other, story = second["prefill"], " ".join(second["sentences"])
        assert (same, other == home) == (text, False)
        assert f"{other} pulls {BLOCKS * BLOCK} tokens out of the store of s0: " in story
        assert f"{other} pulled {BLOCKS} KV blocks" in story
        assert f"{BLOCKS * BLOCK} of {len(prompt)} tokens were cached" in story
        wait_until("it is counted", lambda: counts(running, "s0")["store_copied"] >= BLOCKS)
        (tier,) = [tier for tier in running.ctl("store") if tier["worker"] == "s0"]
        assert (tier["tier"], tier["role"], tier["state"]) == ("ram", "pool", "on")
        kill(running, "s0")
        again, third = ask(running, [*prompt, 1])
        assert again
        assert " out of the store of s0" not in " ".join(third["sentences"])


def test_a_pool_that_was_killed_gives_what_its_disk_has(tmp_path: Path) -> None:
    draw = random.Random(8)
    prompt = [draw.randrange(1, 250) for _ in range(BLOCKS * BLOCK + 3)]
    disk = {
        "BATON_KV__STORE__PATH": str(tmp_path),
        "BATON_KV__STORE__ENCRYPT_AT_REST": "true",
        "BATON_POOL__S0__KV__STORE__DISK_MIB": "64",
    }
    with fleet("--prefill", "2", "--decode", "1", "--pools", "1", env=STORES | disk) as running:
        running.wait_ready()
        wait_until("the pool knows the layout", lambda: bool(row(running, "s0")["fingerprint"]))
        text, first = ask(running, prompt)
        on_disk = {"worker": "s0", "tier": "disk", "blocks": BLOCKS}

        def written() -> bool:
            return any(on_disk.items() <= tier.items() for tier in running.ctl("store"))

        wait_until("the pool's disk has it", written)
        kill(running, "s0")
        wait_until("its successor has it", lambda: row(running, "s0")["disk_hashes"] >= BLOCKS)
        kill(running, first["prefill"])
        same, second = ask(running, prompt)
        story = " ".join(second["sentences"])
        assert same == text
        assert f"{second['prefill']} pulls {BLOCKS * BLOCK} tokens out of the disk of s0: " in story
        assert f"{second['prefill']} pulled {BLOCKS} KV blocks" in story


def test_a_pinned_prefix_survives_what_pushes_everything_else_out(tmp_path: Path) -> None:
    draw = random.Random(9)

    def prompt() -> list[int]:
        return [draw.randrange(1, 250) for _ in range(BLOCKS * BLOCK + 3)]

    kept = prompt()
    small = {"BATON_POOL__S0__KV__STORE__RAM_MIB": str(SMALL_MIB)}
    with fleet("--prefill", "2", "--decode", "1", "--pools", "1", env=STORES | small) as running:
        running.wait_ready()
        wait_until("the pool knows the layout", lambda: bool(row(running, "s0")["fingerprint"]))

        def tier() -> dict[str, Any]:
            rows = [one for one in running.ctl("store", "worker=s0") if one["tier"] == "ram"]
            return dict(rows[0]) if rows else {"blocks": 0, "pinned": 0, "evicted": 0}

        _, first = ask(running, kept)
        wait_until("the pool has it", lambda: tier()["blocks"] >= BLOCKS)
        (ordered,) = running.ctl("store", "pin", f"request={first['id']}", "worker=s0")
        assert (ordered["blocks"], ordered["wanted"]) == (BLOCKS, BLOCKS)
        wait_until("it is pinned", lambda: tier()["pinned"] == BLOCKS)
        while tier()["evicted"] < tier()["blocks_max"]:
            ask(running, prompt())
        assert tier()["pinned"] == BLOCKS
        if installed() is not None:
            held, pinned = asyncio.run(shown(running, tmp_path))
            assert held.endswith(f" of {SMALL_MIB} MiB")
            assert pinned == str(BLOCKS)
        (dropped,) = running.ctl("store", "drop", f"request={first['id']}", "worker=s0")
        assert dropped["blocks"] == BLOCKS, "the pool has told nobody that it lost any"
        wait_until("it is dropped", lambda: tier()["pinned"] == 0)


async def shown(running: Fleet, folder: Path) -> tuple[str, str]:
    """What the dashboard shows of the pool's memory: how much it holds, and how much is pinned."""
    row = "document.querySelector('[data-store=s0-ram]')"
    async with chromium(folder) as page:
        await page.open(f"http://127.0.0.1:{running.health_port}/", 1400, 1300)
        await page.until(f"!!{row}")
        cells = [await page.value(f"{row}.cells[{at}].textContent") for at in (3, 4)]
        assert page.errors == []
    return cells[0], cells[1]
