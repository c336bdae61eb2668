"""Batches through the official client, and whether each line was answered exactly once.

A simulated engine's text is a function of the prompt, so an answer of another line, or of none, is
seen.
"""

from __future__ import annotations

import json
import signal
from collections import Counter
from typing import Any, Literal

import openai
import psutil

from common.engine.sim.model import SimText
from tests.rigs.fleet import Fleet, wait_until

Endpoint = Literal["/v1/chat/completions", "/v1/completions", "/v1/embeddings"]
CHAT: Literal["/v1/chat/completions"] = "/v1/chat/completions"
COMPLETIONS: Literal["/v1/completions"] = "/v1/completions"
OVER = {"completed", "failed", "expired", "cancelled"}
MODEL = "baton-tiny"


def client(running: Fleet, key: str = "none") -> openai.OpenAI:
    """One that opens a connection for each request, so that it reaches any of several gateways."""
    headers = {"Connection": "close"}
    return openai.OpenAI(
        base_url=f"{running.url}/v1",
        api_key=key,
        max_retries=5,
        timeout=30,
        default_headers=headers,
    )


def chat_line(number: int, **body: Any) -> dict[str, Any]:
    chat = {"model": MODEL, "messages": [{"role": "user", "content": f"line {number}"}]}
    return {"custom_id": f"id-{number}", "method": "POST", "url": CHAT, "body": chat | body}


def ids_line(number: int, prompt: list[int], max_tokens: int) -> dict[str, Any]:
    """A completion of token ids, whose text is known."""
    body = {"model": MODEL, "prompt": prompt, "max_tokens": max_tokens}
    return {"custom_id": f"id-{number}", "method": "POST", "url": COMPLETIONS, "body": body}


def jsonl(lines: list[Any]) -> bytes:
    return b"".join(json.dumps(one).encode() + b"\n" for one in lines)


def started(api: openai.OpenAI, content: bytes, endpoint: Endpoint = CHAT, **more: Any) -> Any:
    file = api.files.create(file=("in.jsonl", content), purpose="batch")
    window = more.pop("completion_window", "24h")
    return api.batches.create(
        input_file_id=file.id, endpoint=endpoint, completion_window=window, **more
    )


def until(api: openai.OpenAI, batch_id: str, status: set[str], seconds: float = 60.0) -> Any:
    found: list[Any] = []

    def reached() -> bool:
        found[:] = [api.batches.retrieve(batch_id)]
        return found[0].status in status

    wait_until(f"{batch_id} is {' or '.join(status)}", reached, seconds)
    return found[0]


def over(api: openai.OpenAI, batch_id: str, seconds: float = 60.0) -> Any:
    return until(api, batch_id, OVER, seconds)


def until_done(api: openai.OpenAI, batch_id: str, lines: int, seconds: float = 60.0) -> None:
    """So many lines have an answer."""

    def reached() -> bool:
        counts = api.batches.retrieve(batch_id).request_counts
        return counts is not None and counts.completed >= lines

    wait_until(f"{lines} lines of {batch_id} are done", reached, seconds)


def kill(running: Fleet, name: str) -> None:
    """The daemon is gone when this returns."""
    victim = running.children()[name]
    victim.send_signal(signal.SIGKILL)
    _, left = psutil.wait_procs([victim], timeout=10)
    assert not left


def is_up(running: Fleet, name: str) -> bool:
    return name in running.children()


def entries(api: openai.OpenAI, file_id: str | None) -> list[Any]:
    if file_id is None:
        return []
    return [json.loads(text) for text in api.files.content(file_id).text.splitlines()]


def faults(lines: list[dict[str, Any]], found: list[Any]) -> dict[str, int]:
    """How many of these lines, all made by `ids_line`, were lost, came twice or have another text;
    empty if each has its own answer once."""
    times = Counter(entry["custom_id"] for entry in found)
    texts = {entry["custom_id"]: entry for entry in found}
    seen = {
        "lost": 0,
        "twice": 0,
        "strange": len(times.keys() - {one["custom_id"] for one in lines}),
    }
    for line in lines:
        count = times[line["custom_id"]]
        seen["lost"] += count == 0
        seen["twice"] += count > 1
        if count:
            choice = texts[line["custom_id"]]["response"]["body"]["choices"][0]
            seen["strange"] += choice["text"] != expected(**line["body"])
    return {what: count for what, count in seen.items() if count}


def expected(prompt: list[int], max_tokens: int, **_: Any) -> str:
    text = SimText(prompt, None, 0)
    return bytes(text.next_token() for _ in range(max_tokens)).decode()
