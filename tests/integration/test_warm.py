"""A fleet of real daemons with a warm decode worker, on simulated engines."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import pytest

from tests.rigs.fleet import Fleet, fleet, wait_until

FLAGS = ("--engine", "sim", "--prefill", "0", "--decode", "2")
SETTINGS = {
    "BATON_DECODE__D1__STATE": "warm",
    "BATON_ROUTER__WARM_IDLE_MS": "400",
    "BATON_ENGINE__MAX_NUM_SEQS": "1",
}
SECONDS = 15.0


@pytest.fixture
def running() -> Iterator[Fleet]:
    with fleet(*FLAGS, env=SETTINGS) as up:
        yield up.wait_ready()


def state(running: Fleet) -> str:
    return str({row["name"]: row["state"] for row in running.ctl("workers")}.get("d1"))


def events(running: Fleet) -> list[dict[str, Any]]:
    told: list[dict[str, Any]] = running.ctl("events")["events"]
    return [row for row in told if row["event"] in ("worker.woken", "worker.asleep")]


def woken_by_queue(running: Fleet) -> bool:
    """And not because d0 was not there yet, as happens while a fleet starts on a busy machine."""
    return any("the queue takes" in row["sentence"] for row in events(running))


def ask(running: Fleet, max_tokens: int = 200) -> int:
    body: dict[str, Any] = {"model": "baton-tiny", "prompt": "hello", "max_tokens": max_tokens}
    body["ignore_eos"] = True
    return httpx.post(f"{running.url}/v1/completions", json=body, timeout=60).status_code


def test_it_sleeps_is_woken_by_a_long_queue_and_sleeps_again(running: Fleet) -> None:
    wait_until("d1 sleeps", lambda: state(running) == "warm", SECONDS)
    assert "decode warm" in running.told("status")
    before = events(running)
    assert ask(running) == 200
    assert events(running) == before, "one request wakes nobody"
    with ThreadPoolExecutor(12) as clients:
        answers = list(clients.map(lambda _: ask(running), range(12)))
    assert answers == [200] * 12
    assert woken_by_queue(running)
    wait_until("d1 sleeps again", lambda: state(running) == "warm", SECONDS)
    assert events(running)[-1]["event"] == "worker.asleep"


def test_it_takes_the_place_of_the_worker_that_dies(running: Fleet) -> None:
    wait_until("d1 sleeps", lambda: state(running) == "warm", SECONDS)
    running.children()["d0"].send_signal(signal.SIGKILL)
    wait_until("d1 is awake", lambda: state(running) == "ready", SECONDS)
    assert ask(running) == 200
