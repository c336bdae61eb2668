"""Batches: each line answered exactly once whoever is killed, what they cost interactive requests,
how much of the idle capacity they use, and what their order saves.

The first two parts have real daemons and simulated engines, the third has real vLLM.

- `exactly once`: 10,000 lines over two gateways, while a gateway and the router are killed five
  times each (`BATON_BENCH_LINES`, `BATON_BENCH_KILLS`).
- `beside`: the same interactive requests at the same times without and with a batch, in turns
  (`BATON_BENCH_TURNS`, `BATON_BENCH_SECONDS` each). Their TTFT is compared; of the decode slots
  that they leave, the share is told that lines use.
- `order`: a file of shuffled prompts with shared beginnings, its lines asked for in the order of
  the file, and run as a batch. Prompt tokens that were computed are compared.
"""

from __future__ import annotations

import asyncio
import os
import random
import statistics
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import openai

from tests.rigs.batches import (
    COMPLETIONS,
    client,
    entries,
    faults,
    ids_line,
    is_up,
    jsonl,
    kill,
    over,
    started,
    until_done,
)
from tests.rigs.fleet import Fleet, fleet, wait_until
from tests.rigs.load import Ask, Load

LINES = int(os.environ.get("BATON_BENCH_LINES", "10000"))
KILLS = int(os.environ.get("BATON_BENCH_KILLS", "5"))
SECONDS = float(os.environ.get("BATON_BENCH_SECONDS", "90"))
TURNS = int(os.environ.get("BATON_BENCH_TURNS", "6"))
RATE, SAMPLE_SECONDS, SETTLE_SECONDS = 0.75, 0.5, 15.0
INTERACTIVE = Ask(prompt_tokens=(4_000, 4_000), max_tokens=100)
SPLIT = ("--engine", "sim", "--prefill", "1", "--decode", "2", "--mode", "disaggregated")
LEASE = {"BATON_GATEWAY__JOBS__LEASE_MS": "2000"}
QUICK = {"BATON_ENGINE__SIM__DECODE_STEP_MS": "10", "BATON_ENGINE__SIM__KV_BLOCK_BYTES": "4096"}
#: So slow that some milliseconds of a busy machine are little: a first token takes 0.6 s.
STEADY = {
    "BATON_ENGINE__SIM__PREFILL_TOKENS_PER_S": "10000",
    "BATON_ENGINE__SIM__DECODE_STEP_MS": "120",
    "BATON_ENGINE__SIM__DECODE_STEP_MS_PER_SEQ": "0.1",
    "BATON_ENGINE__SIM__KV_BLOCK_BYTES": "4096",
    "BATON_ROUTER__REMOTE_PREFILL": "auto",
}
GROUPS, OF_A_GROUP, PREFIX, SUFFIX = 40, 6, 768, 100
SMALL_CACHE = {
    "BATON_MODEL__MAX_MODEL_LEN": "2048",
    "BATON_ENGINE__KV_CACHE_MIB": "32",
    "BATON_ENGINE__MAX_NUM_SEQS": "8",
}


def main() -> None:
    exactly_once()
    beside_interactive()
    order()


@contextmanager
def with_jobs(*flags: str, env: dict[str, str]) -> Iterator[Fleet]:
    with tempfile.TemporaryDirectory() as folder:
        path = {"BATON_GATEWAY__JOBS__PATH": f"{folder}/jobs"}
        with fleet(*flags, env=LEASE | path | env) as running:
            yield running.wait_ready()


# ---------------------------------------------------------------- exactly once


def exactly_once() -> None:
    dice = random.Random(1)
    prompts = [[dice.randint(97, 122) for _ in range(40)] for _ in range(LINES)]
    lines = [ids_line(number, prompt, 16) for number, prompt in enumerate(prompts)]
    flags = ("--engine", "sim", "--prefill", "1", "--decode", "2", "--gateways", "2")
    with with_jobs(*flags, env=QUICK) as running, client(running) as api:
        began = time.monotonic()
        batch = started(api, jsonl(lines), COMPLETIONS)
        for number in range(KILLS):
            until_done(api, batch.id, LINES * (2 * number + 1) // (2 * KILLS + 1), 600)
            for name in (f"g{number % 2}", "r0"):
                kill(running, name)
                wait_until(f"{name} is back", partial(is_up, running, name), 120)
        done = over(api, batch.id, 600)
        seconds = time.monotonic() - began
        found = entries(api, done.output_file_id)
    wrong = faults(lines, found)
    print(
        f"exactly once: {len(found)} of {LINES} lines answered, {done.request_counts.failed} "
        f"failed, {wrong or 'none lost, twice or strange'}; gateway and router killed {KILLS} "
        f"times each, {seconds:.0f} s{'  UNDER TARGET' if wrong or len(found) != LINES else ''}",
        flush=True,
    )


# ---------------------------------------------------------------- beside interactive requests


def beside_interactive() -> None:
    """The prompts of lines are of 40 tokens, those of interactive requests of 4,000. Both of a pair
    of turns have the same arrivals."""
    with with_jobs(*SPLIT, env=STEADY) as running, client(running) as api:
        asyncio.run(Load(running.url, rate=RATE, ask=INTERACTIVE).one())
        alone, beside, shares = list[float](), list[float](), list[float]()
        for turn in range(TURNS):
            alone += asyncio.run(interactive(running, turn))[0]
            batch = started(api, jsonl(short_lines(turn)), COMPLETIONS)
            until_done(api, batch.id, 200)
            ttft_ms, used = asyncio.run(interactive(running, turn))
            assert api.batches.retrieve(batch.id).status == "in_progress", "too few lines"
            beside, shares = beside + ttft_ms, [*shares, used]
            api.batches.cancel(batch.id)
            over(api, batch.id)
    ratios = [percentile(beside, share) / percentile(alone, share) for share in (50, 99)]
    used = statistics.mean(shares)
    print(
        f"beside: TTFT p50/p99 {percentile(alone, 50):.0f}/{percentile(alone, 99):.0f} ms alone, "
        f"{percentile(beside, 50):.0f}/{percentile(beside, 99):.0f} ms beside a batch "
        f"({len(beside)} requests in {TURNS} turns): ratio {ratios[0]:.3f}/{ratios[1]:.3f}; "
        f"{used:.1%} of the slots that they leave are used"
        f"{'  UNDER TARGET' if ratios[1] > 1.05 or used < 0.9 else ''}",
        flush=True,
    )


def short_lines(seed: int) -> list[dict[str, Any]]:
    dice = random.Random(100 + seed)
    prompts = [[dice.randint(97, 122) for _ in range(40)] for _ in range(LINES)]
    return [ids_line(number, prompt, 60) for number, prompt in enumerate(prompts)]


async def interactive(running: Fleet, seed: int) -> tuple[list[float], float]:
    """TTFT of each request in milliseconds, and the share of the slots left by them that others
    used, from samples; both without the first `SETTLE_SECONDS`."""
    load = Load(running.url, rate=RATE, ask=INTERACTIVE, seed=seed)
    shares: list[float] = []
    async with asyncio.TaskGroup() as group:
        done = group.create_task(load.run(), name="load")
        settled = time.monotonic() + SETTLE_SECONDS
        while (now := time.monotonic()) < settled + SECONDS:
            await asyncio.sleep(SAMPLE_SECONDS)
            rows = await asyncio.to_thread(running.ctl, "workers")
            if now > settled:
                shares.append(idle_used(rows, load.running.values()))
        load.stop()
    bad = [answer.fault for answer in done.result() if answer.fault or answer.refused]
    assert not bad, bad[:3]
    counted = [answer for answer in load.answers if answer.began > settled]
    return [(answer.first - answer.began) * 1000 for answer in counted], statistics.mean(shares)


def idle_used(rows: list[dict[str, Any]], live: Any) -> float:
    """Interactive requests that have a token hold a slot of a decode worker; so do those on their
    way to it, which count as lines: a few in a hundred."""
    decodes = [row for row in rows if row["role"] == "decode"]
    held = sum(1 for answer in live if answer.first)
    slots = sum(int(row["requests_max"]) for row in decodes)
    taken = sum(int(row["requests"]) for row in decodes)
    return max(0, taken - held) / (slots - held)


def percentile(values: list[float], share: int) -> float:
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, len(ordered) * share // 100)]


# ---------------------------------------------------------------- order


def order() -> None:
    """Both kinds have beginnings of their own, as long and as many, so that neither finds the
    other's in the cache."""
    flags = ("--prefill", "0", "--mode", "single", "--decode", "1")
    with with_jobs(*flags, env=SMALL_CACHE) as running, client(running) as api:
        as_written = asyncio.run(asked(running, shuffled(3)))
        done = over(api, started(api, jsonl(shuffled(4)), COMPLETIONS).id, 600)
        usage = done.usage
        assert done.request_counts.completed == GROUPS * OF_A_GROUP
    ordered = usage.input_tokens - usage.input_tokens_details.cached_tokens
    saved = 1 - ordered / as_written
    print(
        f"order: {usage.input_tokens} prompt tokens of {GROUPS} shared beginnings; computed "
        f"{as_written} in the order of the file, {ordered} as a batch: {saved:.0%} saved"
        f"{'  UNDER TARGET' if saved < 0.3 else ''}",
        flush=True,
    )


def shuffled(seed: int) -> list[dict[str, Any]]:
    dice = random.Random(seed)

    def ids(count: int) -> list[int]:
        return [dice.randint(10, 250) for _ in range(count)]

    beginnings = [ids(PREFIX) for _ in range(GROUPS)]
    prompts = [beginning + ids(SUFFIX) for beginning in beginnings for _ in range(OF_A_GROUP)]
    dice.shuffle(prompts)
    return [ids_line(number, prompt, 4) for number, prompt in enumerate(prompts)]


async def asked(running: Fleet, lines: list[dict[str, Any]]) -> int:
    """Prompt tokens that are computed for these, eight at a time as in the batch."""
    gate = asyncio.Semaphore(8)
    async with openai.AsyncOpenAI(base_url=f"{running.url}/v1", api_key="none") as api:

        async def one(body: dict[str, Any]) -> int:
            async with gate:
                usage = (await api.completions.create(**body)).usage
            assert usage is not None
            details = usage.prompt_tokens_details
            cached = details.cached_tokens if details is not None else 0
            return int(usage.prompt_tokens) - int(cached or 0)

        return sum(await asyncio.gather(*[one(line["body"]) for line in lines]))
