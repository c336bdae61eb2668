"""Files and batches as the official client uses them, on a fleet whose daemons are killed."""

from __future__ import annotations

import json
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import openai
import pytest

from tests.rigs.fleet import Fleet, fleet, wait_until

SIM = ("--engine", "sim", "--prefill", "1", "--decode", "2")
FAST = {"BATON_ENGINE__SIM__DECODE_STEP_MS": "2", "BATON_GATEWAY__JOBS__LEASE_MS": "1000"}
CHAT = "/v1/chat/completions"


def line(number: int, **body: Any) -> dict[str, Any]:
    chat = {"model": "baton-tiny", "messages": [{"role": "user", "content": f"line {number}"}]}
    return {"custom_id": f"id-{number}", "method": "POST", "url": CHAT, "body": chat | body}


def jsonl(lines: list[Any]) -> bytes:
    return b"".join(json.dumps(one).encode() + b"\n" for one in lines)


def started(api: openai.OpenAI, content: bytes, **more: Any) -> Any:
    file = api.files.create(file=("in.jsonl", content), purpose="batch")
    return api.batches.create(
        input_file_id=file.id, endpoint=CHAT, completion_window="24h", **more
    )


def over(api: openai.OpenAI, batch_id: str, seconds: float = 60.0) -> Any:
    found: list[Any] = []

    def is_over() -> bool:
        found[:] = [api.batches.retrieve(batch_id)]
        return found[0].status in {"completed", "failed", "expired", "cancelled"}

    wait_until(f"{batch_id} is over", is_over, seconds)
    return found[0]


def entries(api: openai.OpenAI, file_id: str | None) -> list[Any]:
    if file_id is None:
        return []
    return [json.loads(text) for text in api.files.content(file_id).text.splitlines()]


def client(running: Fleet, key: str = "none") -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{running.url}/v1", api_key=key, max_retries=0, timeout=30)


@pytest.fixture(scope="module")
def jobs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    path = tmp_path_factory.mktemp("jobs") / "jobs"
    with fleet(*SIM, env=FAST | {"BATON_GATEWAY__JOBS__PATH": str(path)}) as running:
        yield running.wait_ready()


def test_the_official_client_makes_follows_and_reads_a_batch(jobs: Fleet) -> None:
    with client(jobs) as api:
        lines = [line(number, max_tokens=4) for number in range(20)]
        batch = started(api, jsonl(lines), metadata={"for": "the test"})
        assert batch.status == "validating"
        done = over(api, batch.id)
        assert (done.status, done.errors, done.error_file_id) == ("completed", None, None)
        assert done.request_counts.model_dump() == {"total": 20, "completed": 20, "failed": 0}
        assert done.metadata == {"for": "the test"}
        found = entries(api, done.output_file_id)
        assert [entry["custom_id"] for entry in found] == [one["custom_id"] for one in lines]
        body = found[7]["response"]["body"]
        chat = api.chat.completions.create(**lines[7]["body"])
        assert body["choices"][0]["message"]["content"] == chat.choices[0].message.content
        assert done.usage.output_tokens == 80
        assert batch.id in {one.id for one in api.batches.list(limit=2)}
        listed = [file.id for file in api.files.list(purpose="batch_output")]
        assert done.output_file_id in listed
        assert api.files.delete(done.output_file_id).deleted
        with pytest.raises(openai.NotFoundError):
            api.files.content(done.output_file_id)
