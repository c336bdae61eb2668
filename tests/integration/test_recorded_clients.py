"""The recorded requests of foreign clients, sent to a gateway again.

The engine is simulated and cannot force a structure; what a gateway makes of the bodies is real."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from tests.clients import RECORDED
from tests.rigs.fleet import Fleet, fleet

pytestmark = pytest.mark.timeout(400)
SETTINGS = {
    "BATON_GATEWAY__TEXT": "vllm",
    "BATON_ENGINE__SIM__DECODE_STEP_MS": "0",
}
CLIENTS = [
    "anthropic",
    "claude_code",
    "codex",
    "instructor",
    "langchain_openai",
    "litellm",
    "llama_index",
    "openai_node",
    "openai_python",
    "openai_responses",
    "pydantic_ai",
    "vercel",
]
NOT_SIMULATED = "the simulated engine does not model"


@pytest.fixture(scope="module")
def gateway() -> Iterator[Fleet]:
    with fleet("--engine", "sim", "--prefill", "1", "--decode", "1", env=SETTINGS) as running:
        yield running.wait_ready()


def send(client: httpx.Client, request: dict[str, Any]) -> httpx.Response:
    """Codex sets no limit, and a simulated answer has no end of its own."""
    limit = {"max_output_tokens": 4} if request["path"] == "/v1/responses" else {}
    return client.post(request["path"], json=request["body"] | limit)


@pytest.mark.parametrize("key", CLIENTS)
def test_recorded_requests_are_answered(gateway: Fleet, key: str) -> None:
    requests: list[dict[str, Any]] = json.loads((RECORDED / f"{key}.json").read_text())
    with httpx.Client(base_url=gateway.url, timeout=60) as client:
        for request in requests:
            answer = send(client, request)
            if NOT_SIMULATED in answer.text:
                continue
            assert answer.status_code == 200, (request["body"].keys(), answer.text)


def test_every_recording_is_sent() -> None:
    assert sorted(path.stem for path in RECORDED.glob("*.json")) == CLIENTS


def test_what_agents_send_beyond_vllms_fields_is_named(gateway: Fleet) -> None:
    expected = {"codex": "client_metadata", "claude_code": "context_management"}
    with httpx.Client(base_url=gateway.url, timeout=60) as client:
        for key, field in expected.items():
            request = json.loads((RECORDED / f"{key}.json").read_text())[0]
            answer = send(client, request)
            assert answer.status_code == 200
            assert field in answer.headers["x-ignored-fields"].split(", ")
