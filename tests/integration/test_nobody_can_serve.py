"""A fleet of which no decode worker may be given requests says so everywhere, and refuses."""

from __future__ import annotations

import subprocess
import sys

import httpx

from tests.rigs.fleet import Fleet, fleet, wait_until

REASON = "no decode worker is ready: 2 drained"
ASK = {"model": "baton-tiny", "prompt": "hello", "max_tokens": 2}


def ready_by_ctl(running: Fleet) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "services.cli", "ctl", "ready"]
    command += ["--run-dir", str(running.run_dir)]
    return subprocess.run(command, capture_output=True, text=True, timeout=30, check=False)


def test_all_decode_workers_are_drained() -> None:
    with (
        fleet("--engine", "sim", "--decode", "2") as running,
        httpx.Client(base_url=running.wait_ready().url, timeout=30) as client,
    ):
        running.ctl("drain", "d0")
        assert client.get("/health").status_code == 200, "the other one serves"
        assert client.post("/v1/completions", json=ASK).status_code == 200
        running.ctl("drain", "d1")
        wait_until("the gateway heard of it", lambda: client.get("/health").status_code == 503, 10)
        health = client.get("/health")
        assert health.json() == {"status": "unavailable", "reason": REASON}
        assert health.headers["retry-after"]
        status = running.ctl("status")
        assert (status["ready"], status["reason"], status["decode_ready"]) == (False, REASON, 0)
        asked = ready_by_ctl(running)
        assert asked.returncode == 1
        assert REASON in asked.stderr
        refused = client.post("/v1/completions", json=ASK)
        assert refused.status_code == 503
        assert refused.json()["error"]["code"] == "no_capacity"
        assert int(refused.headers["retry-after"]) >= 1
        running.ctl("resume", "d1")
        wait_until("it serves again", lambda: client.get("/health").status_code == 200, 10)
        assert client.post("/v1/completions", json=ASK).status_code == 200
