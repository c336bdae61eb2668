"""A warm decode worker on real vLLM: it gives the memory of its KV back, wakes in a small part of
the time that a start takes, and answers as a plain engine does."""

from __future__ import annotations

import signal
import time
from typing import Any

import httpx
import psutil
import pytest

from tests.e2e.reference import plain_answers
from tests.rigs.fleet import Fleet, fleet, wait_until

pytestmark = [pytest.mark.long, pytest.mark.timeout(600)]

KV_MIB = 512
SETTINGS = {
    "BATON_DECODE__D1__STATE": "warm",
    "BATON_ENGINE__KV_CACHE_MIB": str(KV_MIB),
    "BATON_ROUTER__WARM_IDLE_MS": "1000",
}
PROMPTS = [[(11 * i + n) % 240 + 1 for i in range(260 + 90 * n)] for n in range(3)]
MAX_TOKENS = 12
SECONDS = 90.0
SHARE_MAX = 0.2


def row(running: Fleet, name: str = "d1") -> dict[str, Any]:
    rows: list[dict[str, Any]] = running.ctl("workers")
    return next((each for each in rows if each["name"] == name), {})


def is_now(running: Fleet, state: str, name: str = "d1") -> bool:
    return row(running, name).get("state") == state


def answers(running: Fleet) -> list[list[int]]:
    told = []
    for prompt in PROMPTS:
        body = {"model": "baton-tiny", "prompt": prompt, "max_tokens": MAX_TOKENS}
        options = {"temperature": 0, "return_token_ids": True, "ignore_eos": True}
        answer = httpx.post(f"{running.url}/v1/completions", json=body | options, timeout=120)
        assert answer.status_code == 200, answer.text
        told.append(answer.json()["choices"][0]["token_ids"])
    return told


def resident_mib(running: Fleet, name: str) -> float:
    """Of the worker and its engine."""
    daemon = running.children()[name]
    processes = [daemon, *daemon.children(recursive=True)]
    return sum(process.memory_full_info().uss for process in processes) / 2**20


def test_it_sleeps_without_kv_wakes_quickly_and_answers_as_a_plain_engine() -> None:
    expected = plain_answers(PROMPTS, MAX_TOKENS)
    with fleet("--prefill", "1", "--decode", "2", env=SETTINGS) as running:
        running.wait_ready()
        wait_until("d1 sleeps", lambda: is_now(running, "warm"), SECONDS)
        asleep, awake = resident_mib(running, "d1"), resident_mib(running, "d0")
        print(f"asleep {asleep:.0f} MiB, awake {awake:.0f} MiB")
        assert awake - asleep > 0.8 * KV_MIB
        assert answers(running) == expected
        assert row(running)["requests"] == 0

        running.children()["d0"].send_signal(signal.SIGKILL)
        wait_until("d1 is awake", lambda: is_now(running, "ready"), SECONDS)
        woke_ms = row(running)["wake_ms"]
        assert answers(running) == expected
        again = answers(running)
        assert again == expected, "also with the prefixes that it has cached since"

        wait_until("d0 is back", lambda: is_now(running, "ready", "d0"), SECONDS)
        back_ms = 1000 * (time.time() - running.children()["d0"].create_time())
        print(f"woke in {woke_ms:.0f} ms, a start takes {back_ms:.0f} ms")
        assert 0 < woke_ms < SHARE_MAX * back_ms
        wait_until("d1 sleeps again", lambda: is_now(running, "warm"), SECONDS)
        assert resident_mib(running, "d1") < asleep + 0.2 * KV_MIB
        assert answers(running) == expected
        running.ctl("drain", "d0")
        wait_until("d1 is woken again", lambda: is_now(running, "ready"), SECONDS)
        assert answers(running) == expected
        assert psutil.pid_exists(row(running)["pid"])
