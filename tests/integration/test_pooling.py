"""A pooling model on simulated engines: every bound that holds for a chat, and no request lost."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import httpx
import pytest

from tests.rigs.fleet import Fleet, fleet, wait_until
from tests.rigs.processes import add_key
from tests.zoo.pooling import BERT_EMBED, made

SLOW = {
    "BATON_ENGINE__SIM__PREFILL_TOKENS_PER_S": "4000",
}
LONG = "x" * 400
REQUESTS = 60


def flags(*more: str) -> tuple[str, ...]:
    (folder,) = made(BERT_EMBED)
    about = ("--engine", "sim", "--mode", "replicated", "--decode", "3")
    return (*about, "--model", str(folder), "--name", "vectors", *more)


@pytest.fixture(scope="module")
def keys(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    file = tmp_path_factory.mktemp("keys") / "keys.json"
    found = {"plain": add_key(file, "plain")}
    found["rated"] = add_key(file, "rated", "--requests-per-min", "1")
    return found | {"file": str(file)}


@pytest.fixture(scope="module")
def running(keys: dict[str, str]) -> Iterator[Fleet]:
    env = {"BATON_MODEL__TASK": "embed", **SLOW}
    with fleet(*flags("--keys", keys["file"]), env=env) as up:
        yield up.wait_ready()


def ask(running: Fleet, key: str, path: str = "/v1/embeddings", **body: Any) -> httpx.Response:
    headers = {"authorization": f"Bearer {key}"}
    return httpx.post(running.url + path, json=body, headers=headers, timeout=60)


def test_a_vector_for_each_text_and_the_usage(running: Fleet, keys: dict[str, str]) -> None:
    answer = ask(running, keys["plain"], input=["ab", "cde"])
    assert answer.status_code == 200, answer.text
    body = answer.json()
    assert [len(row["embedding"]) for row in body["data"]] == [64, 64]
    assert (body["usage"]["prompt_tokens"], body["usage"]["total_tokens"]) == (5, 5)
    again = ask(running, keys["plain"], input="ab").json()
    assert again["data"][0]["embedding"] == body["data"][0]["embedding"]


def test_a_request_explains_itself(running: Fleet, keys: dict[str, str]) -> None:
    answer = ask(running, keys["plain"], input=LONG)
    told = running.ctl("explain", answer.json()["id"])
    (attempt,) = told["attempts"]
    assert attempt["prefill"] == ""
    assert attempt["decode"] in ("d0", "d1", "d2")
    assert "tokens" in running.told("explain", answer.json()["id"])


def test_keys_and_rate_limits_hold(running: Fleet, keys: dict[str, str]) -> None:
    assert ask(running, "wrong", input="x").status_code == 401
    answers = [ask(running, keys["rated"], input="x") for _ in range(2)]
    assert [answer.status_code for answer in answers] == [200, 429]
    assert "retry-after" in answers[1].headers


@pytest.mark.parametrize(
    ("path", "body", "says"),
    [
        ("/v1/embeddings", {"input": ["x"] * 2_049}, "gateway.limits.inputs_max"),
        ("/v1/embeddings", {"input": [1, "x"]}, "input must be text, token ids"),
        ("/score", {"queries": "x", "documents": ["x"] * 2_049}, "gateway.limits.inputs_max"),
        ("/rerank", {"query": {"a": 1}, "documents": ["x"]}, "query must be an array"),
        ("/v1/embeddings", {"input": "x", "encoding_format": "bytes"}, '"float" or "base64"'),
        ("/v1/embeddings", {"input": "x" * 600}, "maximum context length"),
        ("/v1/completions", {"prompt": "x"}, "task 'embed'"),
        ("/classify", {"input": "x"}, "task 'embed'"),
    ],
)
def test_one_clear_error(
    running: Fleet, keys: dict[str, str], path: str, body: dict[str, Any], says: str
) -> None:
    answer = ask(running, keys["plain"], path, **body)
    assert answer.status_code == 400
    assert says in answer.json()["error"]["message"]


def test_the_prompts_of_one_body_spread_over_workers(running: Fleet, keys: dict[str, str]) -> None:
    answer = ask(running, keys["plain"], input=[LONG] * 12)
    assert answer.status_code == 200
    used = {
        attempt["decode"]
        for number in range(12)
        for attempt in running.ctl(
            "explain", answer.json()["id"] + (f"-{number}" if number else "")
        )["attempts"]
    }
    assert used == {"d0", "d1", "d2"}


def test_no_request_is_lost_when_workers_are_killed(running: Fleet, keys: dict[str, str]) -> None:
    """The last test of this fleet. Two of its workers die, each with requests on it."""
    with ThreadPoolExecutor(8) as clients:
        asked = [
            clients.submit(ask, running, keys["plain"], input=[f"{n}-a-{LONG}", f"{n}-b-{LONG}"])
            for n in range(REQUESTS)
        ]
        for name in ("d0", "d1"):
            wait_until(f"{name} has requests", partial(_holds, running, name), 30)
            running.children()[name].send_signal(signal.SIGKILL)
            wait_until(f"{name} is gone", partial(_is_gone, running, name), 30)
        answers = [one.result(120) for one in asked]
    assert [answer.status_code for answer in answers] == [200] * REQUESTS
    for answer in answers:
        assert [len(row["embedding"]) for row in answer.json()["data"]] == [64, 64]
    again = [
        running.ctl("explain", answer.json()["id"] + end)["attempts"]
        for answer in answers
        for end in ("", "-1")
    ]
    assert max(map(len, again)) > 1, "some were computed by another worker"


def _holds(running: Fleet, name: str) -> bool:
    return any(row["name"] == name and row["requests"] for row in running.ctl("workers"))


def _is_gone(running: Fleet, name: str) -> bool:
    return not _holds(running, name)
