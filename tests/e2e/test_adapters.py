"""A base and two LoRA adapters in one fleet on real vLLM answer as a plain engine does, also when a
stream moves to another decode worker, and when its worker is killed and it goes on from copies."""

from __future__ import annotations

import json
import signal
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.e2e.prompts import BLOCK
from tests.e2e.reference import plain_adapter_answers
from tests.rigs.adapters import make_adapter
from tests.rigs.fleet import Fleet, fleet, wait_until

pytestmark = [pytest.mark.long, pytest.mark.timeout(600)]

BASE = "baton-tiny"
NAMES = ("law", "sql")
PROMPTS = [[(7 * i + n) % 240 + 1 for i in range(150 + 110 * n)] for n in range(2)]
LONG = 800
"""Tokens of each answer; the comparisons of whole answers take fewer."""
SHORT = 10
MOVE_AT, KILL_AT = 40, 150
OTHER = {"d0": "d1", "d1": "d0"}


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    root = tmp_path_factory.mktemp("adapters")
    return {name: make_adapter(root / name, seed) for seed, name in enumerate(NAMES, 1)}


@pytest.fixture(scope="module")
def expected(folders: dict[str, Path]) -> dict[str, list[list[int]]]:
    return plain_adapter_answers(PROMPTS, LONG, {BASE: None, **folders})


@pytest.fixture(scope="module")
def running(folders: dict[str, Path], expected: dict[str, list[list[int]]]) -> Iterator[Fleet]:
    """Two slots: the last one is never empty. Of each stream there are copies at the other decode
    worker. The plain engine has ended before."""
    assert expected
    env = {f"BATON_ADAPTERS__{name.upper()}__PATH": str(path) for name, path in folders.items()}
    env |= {"BATON_ENGINE__KV_CACHE_MIB": "256", "BATON_ENGINE__ARGS__MAX_LORAS": "2"}
    env["BATON_ENGINE__ARGS__ENABLE_LORA"] = "true"
    env |= {"BATON_KV__STORE__RAM_MIB": "64", "BATON_KV__CHECKPOINT__POLICY": "all"}
    with fleet("--prefill", "1", "--decode", "2", env=env) as up:
        up.wait_ready()
        wait_until("all workers have both", lambda: len(up.ctl("adapter")) == 6, 60)
        yield up


def stream(running: Fleet, model: str, prompt: list[int], most: int) -> Iterator[list[int]]:
    body = {"model": model, "prompt": prompt, "max_tokens": most, "temperature": 0}
    more = {"return_token_ids": True, "ignore_eos": True, "stream": True}
    url = f"{running.url}/v1/completions"
    with httpx.stream("POST", url, json=body | more, timeout=120) as answer:
        assert answer.status_code == 200, answer.read()
        for line in answer.iter_lines():
            if line.startswith("data: {"):
                chunk = json.loads(line.removeprefix("data: "))
                assert chunk["model"] == model, chunk
                for choice in chunk["choices"]:
                    yield choice.get("token_ids") or []


def answer(running: Fleet, model: str, prompt: list[int]) -> list[int]:
    return [token for tokens in stream(running, model, prompt, SHORT) for token in tokens]


def test_answers_are_those_of_a_plain_engine(
    running: Fleet, expected: dict[str, list[list[int]]]
) -> None:
    assert len({str(tokens) for tokens in expected.values()}) == len(expected)
    asked = [(name, nth) for nth in range(len(PROMPTS)) for name in expected] * 2
    with ThreadPoolExecutor(len(asked)) as clients:
        got = list(clients.map(lambda ask: answer(running, ask[0], PROMPTS[ask[1]]), asked))
    for (name, nth), tokens in zip(asked, got, strict=True):
        assert tokens == expected[name][nth][:SHORT], (name, nth)
    for name, nth in asked:
        assert answer(running, name, PROMPTS[nth]) == expected[name][nth][:SHORT], (name, nth)
    assert not any(row["unlike"] for row in running.ctl("workers"))
    assert (
        running.ctl("status")["totals"]["placed"] > running.ctl("status")["totals"]["placed_local"]
    )
    blocks = sum(len(prompt) // BLOCK for prompt in PROMPTS)
    wait_until("the router knows each one's", lambda: known(running) >= blocks * len(expected), 30)


def known(running: Fleet) -> int:
    """Prefix hashes of the prefill worker."""
    hashes = {row["name"]: row["prefix_hashes"] for row in running.ctl("workers")}
    return int(hashes["p0"])


def only_stream(running: Fleet) -> dict[str, Any]:
    (row,) = [row for row in running.ctl("requests") if row["state"] == "decoding"]
    found: dict[str, Any] = row
    return found


def last_attempt(running: Fleet, request_id: str) -> dict[str, Any]:
    attempts: list[dict[str, Any]] = running.ctl("explain", request_id)["attempts"]
    assert len(attempts) >= 2, attempts
    return attempts[-1]


def test_a_stream_moves_with_its_kv_and_its_adapter(
    running: Fleet, expected: dict[str, list[list[int]]]
) -> None:
    seen: list[int] = []
    row: dict[str, Any] = {}
    for tokens in stream(running, "law", PROMPTS[1], LONG):
        seen += tokens
        if len(seen) > MOVE_AT and not row:
            row = only_stream(running)
            running.ctl("move", row["request_id"], f"to={OTHER[row['decode']]}")
    assert seen == expected["law"][1]
    last = last_attempt(running, row["request_id"])
    move = last["move"]
    assert (move["reason"], move["source"]) == ("operator", row["decode"])
    assert move["target"] == OTHER[row["decode"]]
    assert move["recomputed_tokens"] == 1, last["sentences"]


def test_a_stream_goes_on_from_copies_with_its_adapter_when_its_worker_is_killed(
    running: Fleet, expected: dict[str, list[list[int]]]
) -> None:
    """The last test of this fleet."""
    seen: list[int] = []
    row: dict[str, Any] = {}
    for tokens in stream(running, "sql", PROMPTS[1], LONG):
        seen += tokens
        if len(seen) > KILL_AT and not row:
            row = only_stream(running)
            running.children()[row["decode"]].send_signal(signal.SIGKILL)
    assert seen == expected["sql"][1]
    last = last_attempt(running, row["request_id"])
    story = " ".join(last["sentences"])
    print(row["copies"], story)
    assert "it went on from the copies of its blocks at d" in story
    assert last["prompt_tokens"] - last["cached_tokens"]["decode"] <= 2 * BLOCK
