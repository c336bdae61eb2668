"""Batches: each line answered exactly once whoever is killed, what they cost interactive requests,
how much of the idle capacity they use, and what their order saves.

`BATON_BENCH_PARTS` names those that are run, all by default but the last:

- `once`: 10,000 lines over two gateways, while a gateway and the router are killed five times each
  (`BATON_BENCH_LINES`, `BATON_BENCH_KILLS`).
- `stopped`: two gateways, of which one is stopped for longer than its leases and goes on then, and
  the other one is killed.
- `order`: a file of shuffled prompts with shared beginnings, its lines asked for in the order of
  the file, and run as a batch. Prompt tokens that were computed are compared.
- `beside`: the same interactive requests at the same times without a batch, with one, and without
  one again, in turns (`BATON_BENCH_TURNS`, `BATON_BENCH_SECONDS` each). Their TTFT is compared with
  that of the first and the third together; what the third and the first differ by is the host's
  own. Of the decode slots that interactive requests leave, the share is told that lines use.
- `beside-virtual`: the same requests and lines in virtual time, three times for four minutes: the
  router's rules without the noise of a host.
- `beside-vllm`: the same on vLLM, one prefill and one decode worker. The prefill worker has a core
  of its own, as it has a GPU of its own elsewhere; what else there is shares the others.

`order` and `beside-vllm` have real vLLM, the others real daemons and simulated engines.
"""

from __future__ import annotations

import asyncio
import os
import random
import signal
import sqlite3
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from functools import partial
from typing import Any, NamedTuple

import openai

from loadtest.capacity import fleet as capacity
from loadtest.capacity.batch import BatchShape
from loadtest.capacity.profile import Profile
from loadtest.capacity.workload import RequestShape, poisson
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
SECONDS = float(os.environ.get("BATON_BENCH_SECONDS", "60"))
TURNS = int(os.environ.get("BATON_BENCH_TURNS", "4"))
PARTS = os.environ.get("BATON_BENCH_PARTS", "once,stopped,order,beside-virtual,beside")
SAMPLE_SECONDS, SETTLE_SECONDS = 0.5, 15.0
SIM = ("--engine", "sim", "--prefill", "1", "--decode", "2", "--gateways", "2")
LEASE_SECONDS = 2.0
LEASE = {"BATON_GATEWAY__JOBS__LEASE_MS": str(LEASE_SECONDS * 1000)}
QUICK = {"BATON_ENGINE__SIM__DECODE_STEP_MS": "10", "BATON_ENGINE__SIM__KV_BLOCK_BYTES": "4096"}
#: So slow that some milliseconds of a busy machine are little: a first token takes 0.5 s. A step
#: is short beside that, because when in a step a prompt is ready differs from turn to turn.
STEADY = {
    "BATON_ENGINE__SIM__PREFILL_TOKENS_PER_S": "10000",
    "BATON_ENGINE__SIM__DECODE_STEP_MS": "60",
    "BATON_ENGINE__SIM__DECODE_STEP_MS_PER_SEQ": "0.05",
    "BATON_ENGINE__SIM__KV_BLOCK_BYTES": "4096",
    "BATON_ROUTER__REMOTE_PREFILL": "auto",
}
GROUPS, OF_A_GROUP, PREFIX, SUFFIX = 40, 6, 768, 100
SMALL_CACHE = {
    "BATON_MODEL__MAX_MODEL_LEN": "2048",
    "BATON_ENGINE__KV_CACHE_MIB": "32",
    "BATON_ENGINE__MAX_NUM_SEQS": "8",
}


class Beside(NamedTuple):
    """Interactive requests a second, what each is, and the tokens of a line: its prompt's, its
    answer's."""

    flags: tuple[str, ...]
    env: dict[str, str]
    rate: float
    ask: Ask
    line: tuple[int, int]
    #: How many lines are done before anything is measured.
    begun: int
    #: The worker that has a core of its own; empty: all share all cores.
    apart: str = ""


MODELLED = Beside(
    ("--engine", "sim", "--prefill", "2", "--decode", "2", "--mode", "disaggregated"),
    STEADY,
    1.5,
    Ask(prompt_tokens=(4_000, 4_000), max_tokens=200),
    (40, 120),
    200,
)
VIRTUAL = Profile(
    prefill_tokens_per_s=10_000.0,
    decode_step_ms=60.0,
    decode_step_ms_per_seq=0.05,
    block_tokens=128,
    kv_blocks=2048,
    prefix_cache=False,
)
#: The same prompts come again.
NO_CACHE = {"BATON_ENGINE__PREFIX_CACHING": "false"}
#: A line's answer is long, so that slots are seldom between two lines. A prompt takes far longer
#: than a step.
VLLM = Beside(
    ("--prefill", "1", "--decode", "1", "--mode", "disaggregated"),
    {"BATON_ENGINE__THREADS": "1", "BATON_ENGINE__MAX_NUM_SEQS": "32"} | NO_CACHE,
    0.25,
    Ask(prompt_tokens=(4_000, 4_000), max_tokens=50, prompts=4),
    (20, 400),
    100,
    apart="p0",
)


def main() -> None:
    for name in PARTS.split(","):
        progress(f"{name} begins")
        BY_NAME[name]()


def progress(sentence: str) -> None:
    print(f"  {time.strftime('%H:%M:%S')} {sentence}", flush=True)


@contextmanager
def with_jobs(*flags: str, env: dict[str, str]) -> Iterator[Fleet]:
    with tempfile.TemporaryDirectory() as folder:
        path = {"BATON_GATEWAY__JOBS__PATH": f"{folder}/jobs"}
        with fleet(*flags, env=LEASE | path | env) as running:
            yield running.wait_ready()


# ---------------------------------------------------------------- exactly once


def exactly_once() -> None:
    with with_jobs(*SIM, env=QUICK) as running, client(running) as api:
        lines, began = texts(LINES, 40, 16, seed=1), time.monotonic()
        batch = started(api, jsonl(lines), COMPLETIONS)
        for number in range(KILLS):
            until_done(api, batch.id, LINES * (2 * number + 1) // (2 * KILLS + 1), 600)
            for name in (f"g{number % 2}", "r0"):
                kill(running, name)
                wait_until(f"{name} is back", partial(is_up, running, name), 120)
            progress(
                f"g{number % 2} and r0 were killed: {api.batches.retrieve(batch.id).request_counts}"
            )
        done = over(api, batch.id, 600)
        seconds = time.monotonic() - began
        found = entries(api, done.output_file_id)
    verdict("exactly once", lines, found, done, f"gateway and router killed {KILLS} times each")
    progress(f"{LINES / seconds:.0f} lines a second, in {seconds:.0f} s")


def stopped() -> None:
    """A line that a stopped gateway runs is run by the other one. What the stopped one makes of it
    later is not taken."""
    with with_jobs(*SIM, env=QUICK) as running, client(running) as api:
        lines = texts(LINES // 5, 40, 200, seed=2)
        batch = started(api, jsonl(lines), COMPLETIONS)
        until_done(api, batch.id, len(lines) // 10, 300)
        daemon = running.children()["g0"]
        daemon.send_signal(signal.SIGSTOP)
        of_stopped = held(running)
        wait_until("the other took its lines", lambda: not of_stopped & held(running), 60)
        daemon.send_signal(signal.SIGCONT)
        progress(f"g0 was stopped while it had {len(of_stopped)} lines; g1 runs them")
        until_done(api, batch.id, len(lines) // 2, 300)
        kill(running, "g1")
        progress("g1 was killed")
        done = over(api, batch.id, 600)
        found = entries(api, done.output_file_id)
    verdict("two gateways", lines, found, done, "one stopped beyond its leases, the other killed")


def held(running: Fleet) -> set[tuple[int, int]]:
    """Number and fencing number of the lines that g0 holds. Read from the ledger: a connection may
    be the stopped gateway's."""
    path = running.children()["r0"].environ()["BATON_GATEWAY__JOBS__PATH"]
    wanted = "SELECT number, fence FROM lines WHERE state = 1 AND held_by LIKE 'g0|%'"
    with closing(sqlite3.connect(f"{path}/ledger.sqlite", timeout=10)) as ledger:
        return set(ledger.execute(wanted))


def texts(count: int, prompt: int, answer: int, seed: int) -> list[dict[str, Any]]:
    """So many lines of so many tokens."""
    dice = random.Random(seed)
    prompts = [[dice.randint(97, 122) for _ in range(prompt)] for _ in range(count)]
    return [ids_line(number, ids, answer) for number, ids in enumerate(prompts)]


def verdict(what: str, lines: list[Any], found: list[Any], done: Any, how: str) -> None:
    wrong = faults(lines, found)
    bad = wrong or len(found) != len(lines)
    print(
        f"{what}: {len(found)} of {len(lines)} lines answered, {done.request_counts.failed} "
        f"failed, {wrong or 'none lost, twice or strange'}; {how}{'  UNDER TARGET' if bad else ''}",
        flush=True,
    )


# ---------------------------------------------------------------- beside interactive requests


class Turn(NamedTuple):
    """After the settling: TTFT in milliseconds of each, and the share of idle slots used."""

    ttft_ms: list[float]
    used: float


def beside(shape: Beside) -> None:
    """All of a turn have the same arrivals."""
    before, during, after, shares = list[float](), list[float](), list[float](), list[float]()
    with with_jobs(*shape.flags, env=shape.env) as running, client(running) as api:
        if shape.apart:
            keep_apart(running, shape.apart)
        asyncio.run(Load(running.url, rate=shape.rate, ask=shape.ask).one())
        for turn in range(TURNS):
            before += asyncio.run(interactive(running, shape, turn)).ttft_ms
            batch = started(api, jsonl(texts(LINES, *shape.line, seed=turn)), COMPLETIONS)
            until_done(api, batch.id, shape.begun, 300)
            measured = asyncio.run(interactive(running, shape, turn))
            assert api.batches.retrieve(batch.id).status == "in_progress", "too few lines"
            during, shares = during + measured.ttft_ms, [*shares, measured.used]
            api.batches.cancel(batch.id)
            over(api, batch.id, 120)
            after += asyncio.run(interactive(running, shape, turn)).ttft_ms
            so_far = compared(before, during, after)
            progress(f"turn {turn + 1} of {TURNS}: {so_far}, {shares[-1]:.1%} used")
    used, ratio = statistics.mean(shares), p(during, 99) / p(before + after, 99)
    print(
        f"beside: {compared(before, during, after)}; {len(during)} requests beside the batch; "
        f"{used:.1%} of the slots that they leave are used"
        f"{'  UNDER TARGET' if ratio > 1.05 or used < 0.9 else ''}",
        flush=True,
    )


def keep_apart(running: Fleet, name: str) -> None:
    """Gives this worker the first core, and all other processes of the fleet the rest."""
    first, *rest = sorted(os.sched_getaffinity(0))
    assert rest, "one core alone cannot be shared out"
    for child, daemon in running.children().items():
        cores = [first] if child == name else rest
        for process in (daemon, *daemon.children(recursive=True)):
            for thread in process.threads():
                os.sched_setaffinity(thread.id, cores)


def compared(before: list[float], during: list[float], after: list[float]) -> str:
    alone = before + after
    ratios = [f"{p(during, share) / p(alone, share):.3f}" for share in (50, 90, 99)]
    own = [f"{p(after, share) / p(before, share):.3f}" for share in (50, 90, 99)]
    return (
        f"TTFT p50/p99 alone {p(alone, 50):.0f}/{p(alone, 99):.0f} ms, beside a batch "
        f"{p(during, 50):.0f}/{p(during, 99):.0f} ms: ratio p50/p90/p99 {'/'.join(ratios)}; of the "
        f"second time without one to the first {'/'.join(own)}"
    )


async def interactive(running: Fleet, shape: Beside, seed: int) -> Turn:
    """Without the first `SETTLE_SECONDS`; shares are from samples."""
    load = Load(running.url, rate=shape.rate, ask=shape.ask, seed=seed)
    await load.learn()
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
    return Turn(
        [(answer.first - answer.began) * 1000 for answer in counted], statistics.mean(shares)
    )


def idle_used(rows: list[dict[str, Any]], live: Any) -> float:
    """Interactive requests that have a token hold a slot of a decode worker; so do those on their
    way to it, which count as lines: a few in a hundred."""
    decodes = [row for row in rows if row["role"] == "decode"]
    held = sum(1 for answer in live if answer.first)
    slots = sum(int(row["requests_max"]) for row in decodes)
    taken = sum(int(row["requests"]) for row in decodes)
    return max(0, taken - held) / (slots - held)


def p(values: list[float], share: int) -> float:
    """The percentile."""
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


def beside_virtual() -> None:
    ask, (prompt, answer) = MODELLED.ask, MODELLED.line
    asked = RequestShape(prompt=ask.prompt_tokens[0], output=ask.max_tokens, spread=0.0, slack=1.0)
    line = BatchShape(RequestShape(prompt=prompt, output=answer, spread=0.0, slack=1.0))
    alone, during, shares = list[float](), list[float](), list[float]()
    for seed in range(1, 4):
        for batch in (None, line):
            fleet = capacity.Fleet(
                capacity.Scenario(
                    profile=VIRTUAL,
                    prefills=2,
                    decodes=2,
                    arrivals=poisson(MODELLED.rate, 270.0, asked, seed=seed),
                    seconds=240.0,
                    warmup=30.0,
                    batch=batch,
                )
            )
            fleet.run()
            waits = [
                (one.first - one.asked) * 1000
                for one in fleet.samples
                if one.first and one.asked >= 30.0
            ]
            alone, during = (alone + waits, during) if batch is None else (alone, during + waits)
            shares += [fleet.batch.idle_used] if fleet.batch is not None else []
    ratios = [f"{p(during, share) / p(alone, share):.3f}" for share in (50, 90, 99, 100)]
    used, bad = statistics.mean(shares), p(during, 99) / p(alone, 99) > 1.05
    print(
        f"beside, virtual time: TTFT p50/p99 alone {p(alone, 50):.0f}/{p(alone, 99):.0f} ms, "
        f"beside a batch {p(during, 50):.0f}/{p(during, 99):.0f} ms: ratio p50/p90/p99/slowest "
        f"{'/'.join(ratios)}; {len(during)} requests; {used:.1%} of the slots that they leave are "
        f"used{'  UNDER TARGET' if bad or used < 0.9 else ''}",
        flush=True,
    )


BY_NAME: dict[str, Callable[[], None]] = {
    "once": exactly_once,
    "stopped": stopped,
    "order": order,
    "beside-virtual": beside_virtual,
    "beside": partial(beside, MODELLED),
    "beside-vllm": partial(beside, VLLM),
}
