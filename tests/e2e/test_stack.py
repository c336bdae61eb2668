"""HTTP in, tokens out, over two real vLLM engines: equal to one plain engine, token for token.

Two hundred prompts of 1 to 3,000 tokens go through gateway, router, prefill, UCX and decode, eight
at a time. What each handoff moved is taken from the router's own account of the request.
"""

from __future__ import annotations

import asyncio
import json
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import aiohttp
import msgspec
import openai
import pytest

from common.messages import CanaryAnswer
from common.model.embedded import ensure_embedded_model
from common.net.admin_client import ask
from tests.e2e.prompts import BLOCK, prompts, shared_prefix
from tests.e2e.reference import plain_answers
from tests.rigs.fleet import Fleet, fleet, wait_until

pytestmark = pytest.mark.timeout(600)

ROOT = Path(__file__).parents[2]
COUNT = 200
MAX_TOKENS = 12
SHARED = shared_prefix()
CONCURRENCY = 8
PATIENT = {"BATON_KV__ANSWER_MS": "30000"}
"""A machine that stands still for a second loses no connection, and no handoff is asked for
again."""


@pytest.fixture(scope="module")
def texts() -> list[list[int]]:
    return prompts(COUNT)


@pytest.fixture(scope="module")
def plain(texts: list[list[int]]) -> list[list[int]]:
    """What one vLLM engine without any of our code answers; it has ended before the fleet
    starts."""
    tokens = plain_answers(texts, MAX_TOKENS)
    assert len({tuple(one) for one in tokens}) > COUNT * 0.9, "the model answers all alike"
    return tokens


@pytest.fixture(scope="module")
def vllm_fleet(plain: list[list[int]]) -> Iterator[Fleet]:
    assert plain
    with fleet(env=PATIENT) as running:
        yield running.wait_ready()


async def complete(api: openai.AsyncOpenAI, prompt: list[int]) -> tuple[str, list[int], Any]:
    """Request id without its prefix, token ids, usage."""
    answer = await api.completions.create(
        model="baton-tiny",
        prompt=prompt,
        max_tokens=MAX_TOKENS,
        temperature=0,
        extra_body={"ignore_eos": True, "return_token_ids": True},
    )
    assert answer.choices[0].model_extra is not None
    return answer.id.split("-", 1)[1], answer.choices[0].model_extra["token_ids"], answer.usage


async def run_all(running: Fleet, texts: list[list[int]]) -> list[tuple[str, list[int], Any]]:
    api = openai.AsyncOpenAI(
        base_url=f"{running.url}/v1", api_key="none", max_retries=0, timeout=120
    )
    places = asyncio.Semaphore(CONCURRENCY)

    async def one(prompt: list[int]) -> tuple[str, list[int], Any]:
        async with places:
            return await complete(api, prompt)

    return await asyncio.gather(*(one(prompt) for prompt in texts))


async def accounts(running: Fleet, ids: list[str]) -> list[dict[str, Any]]:
    """The router's account of each request's only attempt."""
    found = []
    for request_id in ids:
        answer = await ask(f"ipc://{running.run_dir}/admin.sock", "explain", {"id": request_id})
        assert answer.ok, answer.error
        (attempt,) = answer.result["attempts"]
        found.append(attempt)
    return found


def test_two_hundred_prompts_equal_one_plain_engine_and_their_kv_moved(
    vllm_fleet: Fleet, texts: list[list[int]], plain: list[list[int]]
) -> None:
    answers = asyncio.run(run_all(vllm_fleet, texts))
    for prompt, (_, tokens, usage), expected in zip(texts, answers, plain, strict=True):
        assert tokens == expected, f"prompt of {len(prompt)} tokens"
        assert (usage.prompt_tokens, usage.completion_tokens) == (len(prompt), MAX_TOKENS)
    wait_until("all have ended", lambda: not vllm_fleet.ctl("requests"))
    ids = [request_id for request_id, _, _ in answers]
    told: list[dict[str, Any]] = []

    def handoffs_are_told() -> bool:
        """The report of a short stream's handoff may come after its end."""
        told[:] = asyncio.run(accounts(vllm_fleet, ids))
        return all(attempt["kv"] for attempt in told if attempt["prefill"])

    wait_until("all handoffs are told", handoffs_are_told, 30.0)
    geometry = json.loads((ensure_embedded_model() / "config.json").read_text())
    head_dim = geometry["hidden_size"] // geometry["num_attention_heads"]
    token_bytes = geometry["num_hidden_layers"] * geometry["num_key_value_heads"] * head_dim * 4 * 2
    remote = 0
    for prompt, (_, _, usage), attempt in zip(texts, answers, told, strict=True):
        if not attempt["prefill"]:
            assert len(prompt) <= BLOCK + 1, "only prompts under one block are prefilled on decode"
            continue
        in_caches = attempt["cached_tokens"]
        assert in_caches["decode"] == len(prompt) - 1, "decode computed more than the last token"
        kv = attempt["kv"]
        assert kv["payload_bytes"] == token_bytes * BLOCK * kv["blocks"]
        needed = -(-(len(prompt) - 1) // BLOCK)
        if prompt[: 3 * BLOCK] == SHARED:
            assert kv["blocks"] in range(max(0, needed - 3), needed + 1)
        else:
            assert kv["blocks"] == needed
        local = (needed - kv["blocks"]) * BLOCK
        in_time = max(local, in_caches["prefill"] or 0)
        cached = usage.prompt_tokens_details.cached_tokens
        assert cached in (local, in_time), "handed over is not cached; P's report may be late"
        remote += 1
    assert remote > COUNT / 2


def test_a_chat_streams_the_same_text_as_the_whole_answer(vllm_fleet: Fleet) -> None:
    api = openai.OpenAI(base_url=f"{vllm_fleet.url}/v1", api_key="none", max_retries=0, timeout=60)
    messages: Any = [{"role": "user", "content": "Tell me of the sea. " * 20}]
    whole = api.chat.completions.create(
        model="baton-tiny", messages=messages, max_tokens=40, temperature=0
    )
    chunks = api.chat.completions.create(
        model="baton-tiny", messages=messages, max_tokens=40, temperature=0, stream=True
    )
    text = "".join(c.choices[0].delta.content or "" for c in chunks if c.choices)
    assert text == whole.choices[0].message.content
    assert text


def test_a_client_that_leaves_in_prefill_or_decode_leaves_no_kv_behind(vllm_fleet: Fleet) -> None:
    async def leave(seconds: float) -> None:
        api = openai.AsyncOpenAI(base_url=f"{vllm_fleet.url}/v1", api_key="none", max_retries=0)
        prompt = [11 + (i * 7 + int(seconds * 1000)) % 200 for i in range(2900)]
        with pytest.raises(asyncio.TimeoutError):
            async with asyncio.timeout(seconds):
                await api.completions.create(
                    model="baton-tiny",
                    prompt=prompt,
                    max_tokens=4000,
                    extra_body={"ignore_eos": True},
                )

    async def leave_often() -> None:
        for step in range(12):
            await leave(0.02 + 0.06 * step)

    asyncio.run(leave_often())
    wait_until("no request is left", lambda: not vllm_fleet.ctl("requests"), 5.0)
    wait_until(
        "no KV is held", lambda: all(w["kv_used"] == 0 for w in vllm_fleet.ctl("workers")), 10.0
    )


def test_canaries_of_both_engines_make_the_same_tokens_and_leave_nothing(
    vllm_fleet: Fleet,
) -> None:
    async def run_canary(worker: str) -> CanaryAnswer:
        connector = aiohttp.UnixConnector(path=f"{vllm_fleet.run_dir}/{worker}.metrics.sock")
        async with (
            aiohttp.ClientSession(connector=connector) as session,
            session.post("http://worker/canary?ms=10000") as answer,
        ):
            return msgspec.json.decode(await answer.read(), type=CanaryAnswer)

    async def fly_twice() -> list[CanaryAnswer]:
        return [await run_canary(worker) for worker in ("prefill.p0", "decode.d0") * 2]

    answers: list[CanaryAnswer] = []

    def alone() -> bool:
        """The health daemon has canaries of its own under way at times."""
        answers[:] = asyncio.run(fly_twice())
        return all(answer.alone for answer in answers)

    wait_until("they run alone", alone, 60.0)
    assert [answer.sentence for answer in answers] == [""] * 4
    assert [len(answer.tokens) for answer in answers] == [8] * 4
    assert len({(answer.fingerprint, answer.tokens) for answer in answers}) == 1
    wait_until(
        "no KV is held", lambda: all(w["kv_used"] == 0 for w in vllm_fleet.ctl("workers")), 10.0
    )


def test_a_killed_decode_engine_is_found_and_the_worker_comes_back(vllm_fleet: Fleet) -> None:
    """Last in the file: it breaks the fleet. The engine process dies, not the daemon. Its sockets
    do not outlive the next one's start."""
    sockets = vllm_fleet.run_dir / "d0.engine"
    left = set(sockets.iterdir())
    assert left
    daemon = vllm_fleet.children()["d0"]
    engine = next(c for c in daemon.children(recursive=True) if "EngineCore" in c.name())
    engine.send_signal(signal.SIGKILL)
    vllm_fleet.wait_for_line(r"d0: exited with status 1: task engine-events ended", 15)
    wait_until(
        "d0 serves again",
        lambda: any(w["name"] == "d0" and w["state"] == "ready" for w in vllm_fleet.ctl("workers")),
        90,
    )
    api = openai.OpenAI(base_url=f"{vllm_fleet.url}/v1", api_key="none", max_retries=0, timeout=60)
    answer = api.completions.create(model="baton-tiny", prompt="again " * 60, max_tokens=4)
    assert answer.usage is not None
    assert answer.usage.completion_tokens == 4
    assert not left & set(sockets.iterdir())
