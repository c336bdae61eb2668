"""Decode workers that get several tokens in a step: the same text, usage and ends as with one."""

from __future__ import annotations

import json
import random
import signal
from collections.abc import Callable, Iterator
from typing import Any

import httpx
import pytest

from common.engine.sim.model import SimText
from tests.rigs.fleet import Fleet, fleet, wait_until

pytestmark = pytest.mark.timeout(180)

SPECULATION = {
    "BATON_SPECULATION__METHOD": "draft_model",
    "BATON_SPECULATION__DRAFTER": "simulated",
    "BATON_SPECULATION__TOKENS": "4",
}
DRAW = random.Random(26)
PROMPT = [DRAW.randint(97, 122) for _ in range(300)]
SIZE = 400
Act = Callable[["Read"], object]


@pytest.fixture
def running() -> Iterator[Fleet]:
    with fleet("--engine", "sim", "--prefill", "1", "--decode", "2", env=SPECULATION) as there:
        yield there.wait_ready()


def due(prompt: list[int], tokens: int, seed: int | None = None) -> str:
    text = SimText(prompt, seed, 0)
    return bytes(text.next_token() for _ in range(tokens)).decode()


def body(**more: Any) -> dict[str, Any]:
    asked = {"model": "baton-tiny", "prompt": PROMPT, "max_tokens": SIZE, "ignore_eos": True}
    return asked | {"stream": True, "stream_options": {"include_usage": True}} | more


class Read:
    """What a client got of one stream."""

    def __init__(self) -> None:
        self.request_id = self.text = self.finish = ""
        self.runs: list[int] = []
        self.usage: dict[str, Any] = {}
        self.error: dict[str, Any] = {}

    def line(self, line: str) -> None:
        if not line.startswith("data: {"):
            return
        chunk = json.loads(line.removeprefix("data: "))
        self.error = chunk.get("error") or self.error
        self.request_id = chunk.get("id", "-").split("-", 1)[1]
        self.usage = chunk.get("usage") or self.usage
        for choice in chunk.get("choices", ()):
            self.text += choice["text"]
            self.finish = choice["finish_reason"] or self.finish
            self.runs.append(len(choice["text"]))


def read(running: Fleet, asked: dict[str, Any], at: int = 0, act: Act | None = None) -> Read:
    """`act`: what happens as soon as `at` characters came."""
    got = Read()
    with (
        httpx.Client(base_url=running.url, timeout=60) as client,
        client.stream("POST", "/v1/completions", json=asked) as answer,
    ):
        assert answer.status_code == 200, answer.read()
        for line in answer.iter_lines():
            got.line(line)
            if act is not None and len(got.text) >= at:
                act(got)
                act = None
    return got


def test_text_usage_and_ends_are_those_of_single_tokens(running: Fleet) -> None:
    whole = due(PROMPT, SIZE)
    got = read(running, body())
    assert (got.text, got.finish) == (whole, "length")
    assert got.usage["completion_tokens"] == SIZE
    assert max(got.runs) > 1, "no burst came"
    for limit in range(20, 31):
        got = read(running, body(max_tokens=limit))
        assert (got.text, got.usage["completion_tokens"]) == (whole[:limit], limit)
    for stop in {whole[at : at + 3] for at in range(40, 60)}:
        got = read(running, body(stop=[stop]))
        end = whole.index(stop)
        assert (got.text, got.finish) == (whole[:end], "stop")
        assert got.usage["completion_tokens"] == end + len(stop)


def test_a_burst_is_one_gap_and_drafts_are_told(running: Fleet) -> None:
    got = read(running, body())
    gaps = running.counted("baton_gateway_itl_seconds_count")
    assert SIZE / 5 - 2 <= gaps < SIZE * 0.6
    assert running.counted("baton_gateway_class_tokens_total") == SIZE
    assert running.counted("baton_gateway_class_messages_total") == gaps + 1
    row = running.ctl("explain", got.request_id)["timeline"]
    assert row["tpot_ms"] * (SIZE - 1) == pytest.approx(row["total_ms"] - row["ttft_ms"], rel=0.2)
    (worker,) = [one for one in running.ctl("workers") if one["accepted"] >= 0]
    assert 0.2 < worker["accepted"] < 0.8
    assert 1.5 < worker["tokens_per_output"] <= 5
    assert "accepted" in running.told("workers")


def test_killed_in_the_middle_of_bursts_a_stream_goes_on_exactly(running: Fleet) -> None:
    killed: list[str] = []
    for at, seed in ((1, None), (90, 7), (211, None)):
        wait_until("both are there", lambda: ready(running) == 2, 60)
        asked = body(seed=seed, temperature=1.0) if seed else body(temperature=0)
        got = read(running, asked, at, lambda _: killed.append(kill_holder(running)))
        assert not got.error
        assert (got.text, got.finish) == (due(PROMPT, SIZE, seed), "length")
        assert got.usage["completion_tokens"] == SIZE
        assert got.usage["prompt_tokens"] == len(PROMPT)
        ran_on = [row["decode"] for row in running.ctl("explain", got.request_id)["attempts"]]
        (other,) = {"d0", "d1"} - {killed[-1]}
        assert ran_on == [killed[-1], other]


def kill_holder(running: Fleet) -> str:
    """The name of the worker that was killed."""
    (row,) = running.ctl("requests")
    running.children()[row["decode"]].send_signal(signal.SIGKILL)
    return str(row["decode"])


def ready(running: Fleet) -> int:
    rows = running.ctl("workers")
    return sum(row["state"] == "ready" and row["role"] == "decode" for row in rows)


def test_a_stream_that_moves_between_bursts_loses_nothing(running: Fleet) -> None:
    got = read(running, body(), 50, lambda so_far: running.ctl("move", so_far.request_id))
    assert (got.text, got.finish, got.error) == (due(PROMPT, SIZE), "length", {})
    assert got.usage["completion_tokens"] == SIZE
    attempts = running.ctl("explain", got.request_id)["attempts"]
    assert attempts[-1]["move"]["bytes"] > 0
    source, taker = attempts[0]["decode"], attempts[-1]["decode"]
    cold = f"the drafter of {taker} starts cold: {source} handed over none of its KV"
    assert cold in attempts[-1]["sentences"]
