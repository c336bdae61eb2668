"""A pooling model on simulated engines: every bound that holds for a chat, and no request lost."""

from __future__ import annotations

import base64
import signal
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, Literal

import httpx
import numpy as np
import pytest

from common.engine.sim.model import pooled_numbers
from common.messages import Pooling
from tests.rigs.batches import client, entries, jsonl, over, started
from tests.rigs.fleet import Fleet, fleet, wait_until
from tests.rigs.processes import add_key
from tests.zoo.pooling import BERT_EMBED, made

SETTINGS = {
    "BATON_MODEL__TASK": "embed",
    "BATON_ENGINE__SIM__PREFILL_TOKENS_PER_S": "4000",
    "BATON_GATEWAY__LIMITS__POOLED_NUMBERS_MAX": str(32 * BERT_EMBED.config["hidden_size"]),
}
LONG = "x" * 400
REQUESTS = 60
LINES = 40
TOO_MANY = ["x"] * 10_000
CHAT = [{"role": "user", "content": "x"}]
EMBEDDINGS: Literal["/v1/embeddings"] = "/v1/embeddings"


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
def running(keys: dict[str, str], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    jobs = str(tmp_path_factory.mktemp("jobs") / "jobs")
    env = SETTINGS | {"BATON_GATEWAY__JOBS__PATH": jobs}
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


def vectors(answer: httpx.Response) -> np.ndarray:
    """Of an answer, shape (texts, numbers)."""
    assert answer.status_code == 200, answer.text
    found = [row["embedding"] for row in answer.json()["data"]]
    if isinstance(found[0], str):
        found = [np.frombuffer(base64.b64decode(text), "<f4") for text in found]
    return np.array(found, np.float32)


def made_of(prompt: list[int]) -> np.ndarray:
    return np.frombuffer(pooled_numbers(prompt, Pooling(task="embed")), "<f4")


@pytest.mark.parametrize("encoding", ["float", "base64"])
def test_each_prompt_has_the_numbers_that_a_worker_made_of_it(
    running: Fleet, keys: dict[str, str], encoding: str
) -> None:
    prompts = [[5, 6, 7], [8], [7, 6, 5], [5, 6, 7]]
    found = vectors(ask(running, keys["plain"], input=prompts, encoding_format=encoding))
    assert found == pytest.approx(np.array([made_of(prompt) for prompt in prompts]))
    swapped = {"encoding_format": "base64", "endianness": "big"}
    answer = ask(running, keys["plain"], input=prompts, **swapped).json()
    numbers = np.frombuffer(base64.b64decode(answer["data"][1]["embedding"]), ">f4")
    assert numbers == pytest.approx(made_of([8]))


def test_documents_come_by_their_similarity(running: Fleet, keys: dict[str, str]) -> None:
    texts = [f"document {number}" for number in range(9)]
    found = vectors(ask(running, keys["plain"], input=["query", *texts]))
    similar = found[1:] @ found[0]
    about: dict[str, Any] = {"query": "query", "documents": texts}
    ranked = ask(running, keys["plain"], "/rerank", **about).json()["results"]
    order = np.argsort(-similar).tolist()
    assert [row["index"] for row in ranked] == order
    assert [row["document"]["text"] for row in ranked] == [texts[at] for at in order]
    scores = [row["relevance_score"] for row in ranked]
    assert scores == pytest.approx(similar[order].tolist(), abs=1e-5)
    best = ask(running, keys["plain"], "/rerank", top_n=3, **about).json()["results"]
    assert best == ranked[:3]


def test_an_answer_has_as_many_numbers_as_it_may(running: Fleet, keys: dict[str, str]) -> None:
    """32 vectors of 128 numbers, or 128 in base64."""
    for texts, more, status in (
        (32, {}, 200),
        (33, {}, 400),
        (33, {"encoding_format": "base64"}, 200),
        (129, {"encoding_format": "base64"}, 400),
    ):
        answer = ask(running, keys["plain"], input=["x"] * texts, **more)
        assert answer.status_code == status, answer.text
        if status == 400:
            assert "gateway.limits.pooled_numbers_max" in answer.json()["error"]["message"]
    about = {"query": "x", "documents": ["x"] * 33}
    assert ask(running, keys["plain"], "/rerank", **about).status_code == 200


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
        ("/v1/embeddings", {}, "input"),
        ("/v1/embeddings", {"input": []}, "at least one prompt"),
        ("/v1/embeddings", {"input": [[5], []]}, "input[1] must be token ids, at least one"),
        ("/v1/embeddings", {"input": ["x"] * 2_049}, "gateway.limits.inputs_max"),
        ("/v1/embeddings", {"input": TOO_MANY}, "10000 prompts, at most 2048"),
        ("/rerank", {"query": "x", "documents": TOO_MANY}, "10000 texts, at most 2048"),
        ("/v1/embeddings", {"input": [1, "x"]}, "input must be text, token ids"),
        ("/v1/embeddings", {"input": [5, 999_999]}, "Token id 999999 is out of vocabulary"),
        ("/v1/embeddings", {"input": [5, -1]}, "Token id -1 is out of vocabulary"),
        ("/v1/embeddings", {"input": [[5], [2**70]]}, f"Token id {2**70} is out of vocabulary"),
        ("/v1/embeddings", {"input": "x", "dimensions": 3}, "does not support Matryoshka"),
        ("/v1/embeddings", {"input": "x", "dimensions": 2**70}, "dimensions"),
        ("/v1/embeddings", {"input": "x", "cache_salt": 5}, "cache_salt"),
        ("/v1/embeddings", {"input": LONG, "truncate_prompt_tokens": 513}, "max_model_len"),
        ("/v1/embeddings", {"input": LONG, "truncate_prompt_tokens": 0}, "of prompt 0 no token"),
        ("/v1/embeddings", {"input": ["x", ""]}, "of prompt 1 no token is left"),
        ("/score", {"queries": "x", "documents": ["x"] * 2_049}, "gateway.limits.inputs_max"),
        ("/rerank", {"query": {"a": 1}, "documents": ["x"]}, "query must be an array"),
        ("/v1/embeddings", {"input": "x", "encoding_format": "bytes"}, '"float" or "base64"'),
        ("/v1/embeddings", {"input": "x" * 600}, "maximum context length"),
        ("/v1/embeddings", {"input": [7] * 500_000}, "500000 tokens, but this model's maximum"),
        ("/v1/embeddings", {"input": [[7], [7] * 513]}, "513 tokens, but this model's maximum"),
        ("/v1/completions", {"prompt": "x"}, "task 'embed'"),
        ("/v1/chat/completions", {"messages": CHAT}, "task 'embed'"),
        ("/v1/responses", {"input": "x"}, "task 'embed'"),
        ("/classify", {"input": "x"}, "task 'embed'"),
    ],
)
def test_one_clear_error(
    running: Fleet, keys: dict[str, str], path: str, body: dict[str, Any], says: str
) -> None:
    answer = ask(running, keys["plain"], path, **body)
    assert answer.status_code == 400
    assert says in answer.json()["error"]["message"]


@pytest.mark.parametrize(
    ("priority", "status"),
    [(-1, 200), ("5", 200), (True, 200), (2**63 - 1, 200), (2**70, 400), (None, 400)],
)
def test_a_priority_is_read_as_vllm_reads_it(
    running: Fleet, keys: dict[str, str], priority: Any, status: int
) -> None:
    answer = ask(running, keys["plain"], input="x", priority=priority)
    assert answer.status_code == status, answer.text


def test_a_long_text_is_cut_where_the_body_asks_for_it(
    running: Fleet, keys: dict[str, str]
) -> None:
    cut = ask(running, keys["plain"], input="ab" * 600, truncate_prompt_tokens=4)
    assert cut.status_code == 200, cut.text
    assert cut.json()["usage"]["prompt_tokens"] == 4
    plain = ask(running, keys["plain"], input="abab").json()
    assert cut.json()["data"][0]["embedding"] == plain["data"][0]["embedding"]


@pytest.mark.parametrize("path", ["/v1/embeddings", "/rerank", "/score", "/classify", "/pooling"])
def test_a_model_that_generates_makes_no_vectors(sim_fleet: Fleet, path: str) -> None:
    body = {"input": "x", "query": "x", "queries": "x", "documents": ["x"]}
    answer = httpx.post(sim_fleet.url + path, json=body, timeout=60)
    assert answer.status_code == 400
    error = answer.json()["error"]
    assert error["param"] == "model"
    assert f"is not served by {path}; ask it by /v1/chat/completions" in error["message"]


def test_the_embeddings_of_a_batch_are_those_of_requests(
    running: Fleet, keys: dict[str, str]
) -> None:
    texts = [f"{number}-{LONG[number:]}" for number in range(LINES)]
    bodies: list[dict[str, Any]] = [{"model": "vectors", "input": [text, "x"]} for text in texts]
    bodies += [{"model": "vectors", "input": []}, {"model": "another", "input": "x"}]
    lines = [
        {"custom_id": f"id-{number}", "method": "POST", "url": EMBEDDINGS, "body": body}
        for number, body in enumerate(bodies)
    ]
    with client(running, keys["plain"]) as api:
        done = over(api, started(api, jsonl(lines), EMBEDDINGS).id)
        good, bad = entries(api, done.output_file_id), entries(api, done.error_file_id)
    assert [entry["custom_id"] for entry in good] == [f"id-{n}" for n in range(LINES)]
    assert [entry["response"]["status_code"] for entry in bad] == [400, 404]
    asked = ask(running, keys["plain"], **bodies[7]).json()
    answer = good[7]["response"]["body"]
    assert answer["data"] == asked["data"]
    assert answer["usage"] == asked["usage"]
    assert done.usage.input_tokens == sum(len(text) + 1 for text in texts)
    assert done.usage.output_tokens == 0


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
