"""A small batch on real vLLM: each line's answer is that of the same request, and lines with a
shared beginning find it in the prefix cache."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import openai
import pytest

from tests.rigs.batches import chat_line, client, entries, jsonl, over, started
from tests.rigs.fleet import Fleet, fleet

pytestmark = pytest.mark.timeout(400)
TOOL = {"type": "function", "function": {"name": "look", "parameters": {"type": "object"}}}


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    env = {"BATON_GATEWAY__JOBS__PATH": str(tmp_path_factory.mktemp("jobs") / "jobs")}
    with fleet("--prefill", "1", "--decode", "1", env=env) as up:
        yield up.wait_ready()


def said(answer: dict[str, Any]) -> Any:
    """Text, and the tokens of its logprobs."""
    choice = answer["choices"][0]
    logprobs = (choice["logprobs"] or {}).get("content") or []
    return choice["message"]["content"], [position["token"] for position in logprobs]


def test_a_batch_says_what_the_same_requests_say(running: Fleet, tmp_path: Path) -> None:
    beginnings = ["".join(random.Random(n).choices("eight words ", k=600)) for n in range(3)]
    lines = [
        chat_line(
            number,
            messages=[{"role": "user", "content": f"{beginnings[number % 3]} and {number}?"}],
            max_tokens=12,
            temperature=0,
            **({"logprobs": True} if number % 4 == 0 else {}),
        )
        for number in range(12)
    ]
    lines.append(chat_line(12, tools=[TOOL], tool_choice="nothing"))
    with client(running) as api:
        done = over(api, started(api, jsonl(lines)).id, 200)
        assert (done.request_counts.completed, done.request_counts.failed) == (12, 1)
        assert done.usage.input_tokens_details.cached_tokens > done.usage.input_tokens / 3
        for line, entry in zip(lines, entries(api, done.output_file_id), strict=False):
            assert entry["custom_id"] == line["custom_id"]
            answer = api.chat.completions.create(**line["body"])
            assert said(entry["response"]["body"]) == said(answer.model_dump())
        (refused,) = entries(api, done.error_file_id)
        with pytest.raises(openai.BadRequestError):
            api.chat.completions.create(**lines[12]["body"])
        assert refused["response"]["status_code"] == 400
