"""A daemon that hangs under `baton up` is killed and started again, and no other one is."""

from __future__ import annotations

import re
import signal
from http.client import HTTPConnection
from pathlib import Path

import pytest

from tests.rigs.fleet import Fleet, fleet, wait_until

WATCHDOG_SECONDS = 3
HEADERS = {"Content-Type": "application/json", "x-request-id": "the-cause"}


def again(running: Fleet, words: str) -> None:
    wait_until(words, lambda: sum(words in line for line in running.lines) == 2, 60)


@pytest.mark.timeout(180)
def test_a_gateway_that_hangs_is_started_again_and_its_request_is_named() -> None:
    env = {
        "BATON_UP__WATCHDOG_S": str(WATCHDOG_SECONDS),
        "PYTHONPATH": str(Path(__file__).parent / "hang"),
    }
    with fleet("--engine", "sim", env=env) as running:
        running.wait_ready()
        before = running.children()
        client = HTTPConnection("127.0.0.1", running.port, timeout=60)
        client.request("POST", "/v1/completions", '{"prompt":"hang"}', HEADERS)
        running.wait_for_line(rf"g0: hangs: no beat for {WATCHDOG_SECONDS} s; killing it")
        died = running.wait_for_line(r"g0: was killed by signal 9 while it handled .*")
        assert re.search(r"the-cause-\w+ POST /v1/completions 17 bytes", died)
        again(running, "g0: gateway g0 listens on")
        client.close()
        client.request("POST", "/v1/completions", '{"prompt":"go on","max_tokens":2}', HEADERS)
        assert client.getresponse().status == 200
        after = running.children()
        assert {name for name in before if before[name] != after[name]} == {"g0"}
        assert "request.fatal" in running.log("g0")


@pytest.mark.timeout(180)
def test_a_worker_that_hangs_is_started_again() -> None:
    env = {"BATON_UP__WATCHDOG_S": str(WATCHDOG_SECONDS)}
    with fleet("--engine", "sim", env=env) as running:
        running.wait_ready()
        running.children()["d0"].send_signal(signal.SIGSTOP)
        running.wait_for_line(r"d0: hangs: no beat")
        again(running, "d0: decode d0 ready")
