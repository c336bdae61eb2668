"""A whole fleet is restarted while it serves: its streams move with their KV, and no prompt is
computed twice."""

from __future__ import annotations

import asyncio
import subprocess
from typing import Any

import openai
import pytest

from tests.rigs.fleet import Fleet, fleet, wait_until
from tests.rigs.processes import BATON

MODEL = "baton-tiny"
CLIENTS = 6
TOKENS = 300
WORKERS = ("p0", "p1", "d0", "d1", "d2")
SETTINGS = {
    "BATON_ENGINE__SIM__DECODE_STEP_MS": "10",
    # A machine that stands still for a second is no reason to move a stream here.
    "BATON_ROUTER__LIVENESS__STALL_MS": "20000",
}


@pytest.mark.timeout(180)
def test_a_rollout_under_load_loses_nothing_and_computes_no_prompt_twice() -> None:
    with fleet("--engine", "sim", "--prefill", "2", "--decode", "3", env=SETTINGS) as running:
        running.wait_ready()
        before = {row["name"]: row["incarnation"] for row in running.ctl("workers")}
        answers, status, said = asyncio.run(under_load(running))
        assert status == 0, said
        after = {row["name"]: row["incarnation"] for row in running.ctl("workers")}
        assert sorted(after) == sorted(WORKERS)
        assert all(after[name] != before[name] for name in WORKERS), said
        wait_until("all is over", lambda: not running.ctl("requests"))
        assert {answer.usage.completion_tokens for answer in answers} == {TOKENS}
        stories = [running.ctl("explain", answer.id) for answer in answers]
        attempts = [attempt for story in stories for attempt in story["attempts"]]
        later = [attempt for attempt in attempts if attempt["attempt"] > 1]
        assert later, "nothing was on a worker when it was drained"
        for attempt in later:
            assert attempt["move"], attempt
            assert attempt["move"]["reason"] == "drain"
            assert attempt["move"]["recomputed_tokens"] == 1, attempt
            assert attempt["prefill"] == ""
        prompts = sum(story["attempts"][0]["prompt_tokens"] for story in stories)
        assert computed(attempts) == prompts + len(later)
        moves = [line for line in metrics(running) if line.startswith("baton_router_moves_total")]
        assert len(moves) == 1, "another reason or outcome"
        labels, count = moves[0].split("} ")
        assert labels.endswith('outcome="moved",reason="drain"')
        assert float(count) == len(later)
        print(f"{len(answers)} streams, {len(later)} moved, longest pause", longest(later), "ms")


def computed(attempts: list[dict[str, Any]]) -> int:
    """Prompt tokens that engines computed: prefill workers all of a prompt, decode workers what
    they did not get. The last token of a prompt, whose logits it needs, D computes again."""
    total = 0
    for attempt in attempts:
        if attempt["prefill"]:
            total += attempt["prompt_tokens"] - (attempt["cached_tokens"]["prefill"] or 0)
            assert attempt["kv"]["complete"], attempt
        else:
            total += attempt["prompt_tokens"] - attempt["cached_tokens"]["decode"]
    return total


def longest(later: list[dict[str, Any]]) -> float:
    return max(attempt["move"]["pause_ms"] or 0.0 for attempt in later)


def metrics(running: Fleet) -> list[str]:
    command = ["curl", "-s", f"http://127.0.0.1:{running.health_port}/metrics"]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()


async def under_load(running: Fleet) -> tuple[list[Any], int, str]:
    """The last chunk of every stream that ran meanwhile, and what `baton rollout` said."""
    api = openai.AsyncOpenAI(
        base_url=f"{running.url}/v1", api_key="none", max_retries=0, timeout=60
    )
    answers: list[Any] = []
    ended: list[tuple[int, str]] = []
    over = asyncio.Event()

    async def client(number: int) -> None:
        turn = 0
        while not over.is_set():
            turn += 1
            answers.append(await stream(api, f"client {number}, turn {turn}: " + "word " * 60))

    async def rollout() -> None:
        process = await asyncio.create_subprocess_exec(
            *(*BATON, "rollout", "--run-dir", str(running.run_dir), "--settle-seconds", "1"),
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
        )
        said, _ = await process.communicate()
        over.set()
        ended.append((process.returncode or 0, said.decode()))

    await asyncio.gather(rollout(), *(client(number) for number in range(CLIENTS)))
    ((status, said),) = ended
    return answers, status, said


async def stream(api: openai.AsyncOpenAI, prompt: str) -> Any:
    chunks = await api.completions.create(
        model=MODEL,
        prompt=prompt,
        max_tokens=TOKENS,
        temperature=0,
        stream=True,
        stream_options={"include_usage": True},
        extra_body={"ignore_eos": True},
    )
    last = None
    async for chunk in chunks:
        last = chunk
    assert last is not None
    assert last.usage is not None, "the stream merely stopped"
    return last
