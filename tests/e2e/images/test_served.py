"""Chats with images through a whole fleet: equal to vLLM's own server, whatever dies meanwhile."""

from __future__ import annotations

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.e2e.api.peer import peer
from tests.rigs.fleet import Fleet, fleet, wait_until
from tests.rigs.images import chats, data_url, image_part, picture, text_part, user

pytestmark = [pytest.mark.long, pytest.mark.timeout(900)]

COUNT = 50
CONCURRENCY = 6
# Tokens of a stream. One whose decode worker is asked for must still run when a busy machine asks.
STREAMED = {"decode": 1600, "prefill": 200}
ANSWER = {"temperature": 0, "ignore_eos": True, "max_tokens": 12}
ENV = {
    "BATON_MODEL__DTYPE": "float32",
    "BATON_MODEL__NAME": "baton-tiny",
    "BATON_ENGINE__ARGS": "{enforce_eager = true}",
    "BATON_ENGINE__BLOCK_TOKENS": "32",
}
Json = dict[str, Any]


@dataclass(frozen=True)
class Both:
    fleet: Fleet
    ours: httpx.Client
    theirs: httpx.Client

    def ask(self, path: str, body: Json) -> tuple[Json, Json]:
        answers = [client.post(path, json=body) for client in (self.ours, self.theirs)]
        for answer in answers:
            assert answer.status_code == 200, answer.text
        ours, theirs = (answer.json() for answer in answers)
        return ours, theirs


@pytest.fixture(scope="module")
def both(vision: Path) -> Iterator[Both]:
    with (
        fleet("--model", str(vision), "--prefill", "1", "--decode", "2", env=ENV) as running,
        peer(vision) as url,
        httpx.Client(base_url=running.url, timeout=180) as ours,
        httpx.Client(base_url=url, timeout=180) as theirs,
    ):
        yield Both(running.wait_ready(), ours, theirs)


def test_fifty_chats_with_pictures_equal_vllms_own_server(both: Both) -> None:
    def told(chat: list[Json]) -> tuple[Json, Json]:
        body = ANSWER | {"model": "baton-tiny", "messages": chat, "return_token_ids": True}
        return both.ask("/v1/chat/completions", body)

    asked = chats(COUNT)
    with ThreadPoolExecutor(CONCURRENCY) as threads:
        answers = list(threads.map(told, asked))
    texts = set()
    for nth, (ours, theirs) in enumerate(answers):
        mine, other = ours["choices"][0], theirs["choices"][0]
        assert mine["token_ids"] == other["token_ids"], nth
        assert ours["prompt_token_ids"] == theirs["prompt_token_ids"]
        assert ours["usage"]["prompt_tokens"] == theirs["usage"]["prompt_tokens"]
        texts.add(tuple(mine["token_ids"]))
    assert len(texts) == COUNT, "the model does not look at the pictures"
    assert sum(row["counts"]["bytes_in"] for row in both.fleet.ctl("kv")["workers"]) > COUNT << 16


def test_text_alone_is_rendered_as_the_models_template_wants_it(both: Both) -> None:
    """Parts, which our own rendering would join by newlines."""
    for content in ("what is this?", [text_part("what "), text_part("is this?")]):
        messages = [{"role": "user", "content": content}]
        body = ANSWER | {"model": "baton-tiny", "messages": messages, "return_token_ids": True}
        ours, theirs = both.ask("/v1/chat/completions", body)
        assert ours["prompt_token_ids"] == theirs["prompt_token_ids"]
        assert ours["choices"][0]["token_ids"] == theirs["choices"][0]["token_ids"]


@pytest.mark.parametrize("stream", [False, True])
def test_all_apis_take_pictures(both: Both, stream: bool) -> None:
    url = data_url(picture(1, 100, 80))
    source = {"type": "base64", "media_type": "image/png", "data": url.split(",")[1]}
    say = "what is this?"
    bodies: dict[str, Json] = {
        "/v1/responses": {
            "input": user(
                {"type": "input_text", "text": say}, {"type": "input_image", "image_url": url}
            ),
            "max_output_tokens": 12,
            "ignore_eos": True,
        },
        "/v1/messages": {
            "messages": user({"type": "image", "source": source}, text_part(say)),
            "max_tokens": 12,
        },
    }
    for path, body in bodies.items():
        asked = {"model": "baton-tiny", "temperature": 0, "stream": stream, **body}
        if not stream:
            ours, theirs = both.ask(path, asked)
            assert _text(ours) == _text(theirs) != ""
            assert ours["usage"]["input_tokens"] == theirs["usage"]["input_tokens"]
            continue
        heard = [client.post(path, json=asked).text for client in (both.ours, both.theirs)]
        assert _deltas(heard[0]) == _deltas(heard[1]) != ""


def _text(answer: Json) -> str:
    parts = answer.get("content") or [
        part for item in answer["output"] for part in item.get("content") or []
    ]
    return "".join(part["text"] for part in parts if part["type"] in ("text", "output_text"))


def _deltas(events: str) -> str:
    found = ""
    for line in events.splitlines():
        if line.startswith("data: {"):
            delta = json.loads(line[6:]).get("delta")
            found += delta if isinstance(delta, str) else (delta or {}).get("text", "")
    return found


@pytest.mark.parametrize("victim", ["decode", "prefill"])
def test_a_stream_whose_worker_is_killed_goes_on_exactly(both: Both, victim: str) -> None:
    """D dies after its first tokens. P dies as the request comes."""
    running = both.fleet
    chat = user(text_part("tell " * 30), image_part(picture(77, 200, 150)), text_part(victim))
    body = {"model": "baton-tiny", "messages": chat, "temperature": 0, "ignore_eos": True}
    body |= {"max_tokens": STREAMED[victim], "return_token_ids": True}
    whole = both.theirs.post("/v1/chat/completions", json=body).json()
    expected = whole["choices"][0]["token_ids"]
    if victim == "prefill":
        running.children()["p0"].kill()
    tokens: list[int] = []
    killed = victim == "prefill"
    path = "/v1/chat/completions"
    with both.ours.stream("POST", path, json=body | {"stream": True}) as answer:
        for line in answer.iter_lines():
            if not line.startswith("data: {"):
                continue
            event = json.loads(line[6:])
            assert "error" not in event, event
            tokens += event["choices"][0].get("token_ids") or [] if event["choices"] else []
            if tokens and not killed:
                killed = True
                running.children()[_streaming(running)].kill()
    assert killed
    assert tokens == expected
    wait_until("all workers are back", lambda: _workers(running) == {"p0", "d0", "d1"}, 120)


def _streaming(running: Fleet) -> str:
    """The decode worker that has the one request."""
    (request,) = running.ctl("requests")
    return str(request["decode"])


def _workers(running: Fleet) -> set[str]:
    return {row["name"] for row in running.ctl("workers") if row["state"] == "ready"}
