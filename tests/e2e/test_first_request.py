"""The first request after Ready is answered where the gateway loads vLLM's text classes before."""

from __future__ import annotations

import httpx
import pytest

from tests.rigs.fleet import fleet

pytestmark = pytest.mark.timeout(300)

ASK = {"model": "baton-tiny", "prompt": "hello", "max_tokens": 2}
LOADS_FIRST = {"BATON_GATEWAY__TEXT": "vllm", "BATON_ROUTER__WORKER_TIMEOUT_MS": "10000"}
"""The import of vLLM holds the interpreter for seconds where others want the cores, too."""


def test_the_first_request_after_ready_is_answered() -> None:
    with fleet("--engine", "sim", env=LOADS_FIRST) as running:
        running.wait_ready()
        assert "text.loaded" in running.log("g0")
        answer = httpx.post(f"{running.url}/v1/completions", json=ASK, timeout=10)
        assert answer.status_code == 200
        assert answer.json()["usage"]["completion_tokens"] == 2
        assert "gateway.lost" not in running.log("r0")
