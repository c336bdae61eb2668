"""A pool in a fleet of daemons: it is seen, it is missed when it dies, and nothing waits for it.

Simulated engines have no store, so it learns no layout here; `tests/e2e/test_pool.py` has the KV.
"""

from __future__ import annotations

import signal
from typing import Any

import aiohttp
import openai
import pytest

from tests.rigs.fleet import Fleet, fleet, wait_until

FOUND = "pool worker s0 was lost: its connection closed"


def row(running: Fleet) -> dict[str, Any]:
    """Of the pool; one without a state until the router knows it."""
    rows = {worker["name"]: worker for worker in running.ctl("workers", "pool")}
    found: dict[str, Any] = rows.get("s0", {"state": ""})
    return found


def asked(running: Fleet) -> int:
    with openai.OpenAI(base_url=f"{running.url}/v1", api_key="-", max_retries=0) as api:
        answer = api.completions.create(model="baton-tiny", prompt="All happy", max_tokens=4)
    assert answer.usage is not None
    return answer.usage.completion_tokens


@pytest.mark.timeout(240)
async def test_a_pool_is_seen_killed_and_comes_back_while_requests_go_on() -> None:
    with fleet("--engine", "sim", "--pools", "1") as running:
        running.wait_ready()
        wait_until("the router has it", lambda: row(running)["state"] == "ready")
        seen = row(running)
        assert seen["reason"] == "it holds nothing before a worker with a store is ready"
        assert (seen["requests_max"], seen["fingerprint"]) == (0, "")
        status = running.ctl("status")
        ready = [status[f"{kind}_ready"] for kind in ("prefill", "decode", "pools")]
        assert ready == [1, 1, 1]
        assert asked(running) == 4

        async def exposed() -> str:
            async with aiohttp.ClientSession() as session:
                url = f"http://127.0.0.1:{running.health_port}/metrics"
                async with session.get(url) as page:
                    return await page.text()

        assert 'baton_pool_blocks_max{service="pool",daemon="s0"} 0.0' in await exposed()
        running.children()["s0"].send_signal(signal.SIGKILL)
        wait_until("it is missed", lambda: FOUND in running.log("r0"), 5.0)
        assert asked(running) == 4
        wait_until(
            "its successor is ready",
            lambda: row(running)["state"] == "ready" and row(running)["pid"] != seen["pid"],
            60.0,
        )
        assert running.stop() == 0
