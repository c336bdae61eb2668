"""A fleet of real daemons, on simulated engines, that changes a worker's role by itself."""

from __future__ import annotations

import asyncio

import pytest

from tests.rigs.fleet import Fleet, fleet, wait_until
from tests.rigs.load import Ask, Load, faults_of

pytestmark = pytest.mark.long

FLAGS = ("--engine", "sim", "--prefill", "1", "--decode", "3")
WINDOW_SECONDS = 30.0
SETTINGS = {
    "BATON_ROUTER__BALANCE__MODE": "on",
    "BATON_ROUTER__BALANCE__LONG_MS": str(WINDOW_SECONDS * 1000),
    "BATON_ROUTER__REMOTE_PREFILL": "always",
    "BATON_ENGINE__SIM__PREFILL_TOKENS_PER_S": "1500",
}


def prefills(running: Fleet) -> int:
    rows = running.ctl("workers")
    return sum((row["role"], row["state"]) == ("prefill", "ready") for row in rows)


async def under_load(running: Fleet) -> Load:
    """Twice what one prefill worker computes, until there are two."""
    load = Load(running.url, rate=8.0, ask=Ask((250, 350), max_tokens=8))
    async with asyncio.TaskGroup() as group:
        group.create_task(load.run())
        wait = WINDOW_SECONDS + 30.0
        await asyncio.to_thread(wait_until, "two prefill", lambda: prefills(running) == 2, wait)
        load.stop()
    return load


@pytest.mark.timeout(180)
def test_prompts_that_one_worker_cannot_compute_make_another_prefill() -> None:
    with fleet(*FLAGS, env=SETTINGS) as running:
        running.wait_ready()
        wait_until("it has looked", lambda: "too little" in running.told("balance"), 30.0)
        load = asyncio.run(under_load(running))
        assert faults_of(load.answers) == []
        told = {event["event"]: event["sentence"] for event in running.ctl("events")["events"]}
        assert "is to become a prefill worker: 2P+2D would serve more" in told["balance.ordered"]
        assert "has become a prefill worker" in told["role.changed"]
        assert "to prefill: 2P+2D would serve more than 1P+3D" in running.told("balance")
