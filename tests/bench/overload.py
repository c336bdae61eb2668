"""Goodput of a real fleet with simulated engines at 1 to 4 times its capacity, by what gives out.

All daemons are real, over HTTP; only the engines' time is modelled, so that capacity is known. The
ratio is goodput over the best goodput of the same run. One client in ten obeys `Retry-After`. The
time of a refusal stands beside that of `GET /live` in the same load: on a busy machine both grow.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Iterator, Sequence
from itertools import count
from typing import NamedTuple

import aiohttp

from loadtest.bench import arrivals
from loadtest.bench.driver import LoadPlan, LoadRun
from loadtest.bench.figures import Spread, is_good, spread
from loadtest.bench.prompts import Maker
from loadtest.bench.request_specs import Piece, RequestSpec
from loadtest.bench.sample import Sample
from loadtest.capacity.report import Slo
from loadtest.histogram import Histogram
from tests.rigs.fleet import Fleet, fleet

TIMES = (1.0, 2.0, 3.0, 4.0)
SECONDS = 16.0
SETTLE_SECONDS = 4.0
OBEY = 0.1
TARGETS = {2.0: 0.90, 4.0: 0.85}


class Bound(NamedTuple):
    """`capacity`: requests/s that the bound phase can do on paper. `slo_ms`: of TTFT."""

    name: str
    prompt_tokens: int
    output_tokens: int
    slo_ms: float
    capacity: float
    env: dict[str, str]


PREFILL = Bound(
    name="prefill-bound",
    prompt_tokens=800,
    output_tokens=4,
    slo_ms=1_500.0,
    capacity=8_000 / 800,
    env={
        "BATON_ENGINE__SIM__PREFILL_TOKENS_PER_S": "8000",
        "BATON_ENGINE__SIM__DECODE_STEP_MS": "10",
    },
)
DECODE = Bound(
    name="decode-bound",
    prompt_tokens=200,
    output_tokens=25,
    slo_ms=1_500.0,
    capacity=8 / (25 * 0.040),
    env={
        "BATON_ENGINE__SIM__PREFILL_TOKENS_PER_S": "40000",
        "BATON_ENGINE__SIM__DECODE_STEP_MS": "40",
        "BATON_ENGINE__MAX_NUM_SEQS": "8",
    },
)


def main() -> None:
    for bound in (PREFILL, DECODE):
        env = bound.env | {
            "BATON_ROUTER__TTFT_SLO_MS": str(bound.slo_ms),
            "BATON_ENGINE__SIM__KV_BLOCK_BYTES": "4096",
        }
        with fleet("--engine", "sim", "--prefill", "1", "--decode", "1", env=env) as running:
            running.wait_ready()
            rows = [_offered(running, bound, times) for times in (1.0, *TIMES)][1:]
            running.stop()
        _show(bound, rows)


class Verdict(NamedTuple):
    """The figures of an overload."""

    tries: int
    #: Requests within the SLO per second, by the time at which they were sent.
    good_per_s: float
    #: Share of good requests among the admitted ones.
    attainment: float
    ttft_ms: Spread
    #: Milliseconds to the answer of a refusal.
    refused_ms: Spread
    #: Refusals (429, 503) without `Retry-After`.
    without_wait: int
    #: Share of second tries that were admitted; None without any.
    next_try: float | None
    #: Requests that were neither answered nor refused.
    broken: int


def verdict(samples: Sequence[Sample], slo: Slo, start: float, end: float) -> Verdict:
    """Of the tries made in [start, end), in seconds of the load."""
    tries = [sample for sample in samples if start <= sample.due < end]
    admitted = [sample for sample in tries if sample.status == 200]
    refused = [sample for sample in tries if sample.status in (429, 503)]
    again = [sample for sample in samples if sample.again]
    good = sum(is_good(sample, slo) for sample in admitted)
    waits = ((s.last - s.sent) * 1000 for s in refused if s.last is not None and s.sent is not None)
    return Verdict(
        tries=len(tries),
        good_per_s=good / (end - start),
        attainment=good / len(admitted) if admitted else 0.0,
        ttft_ms=spread(sample.ttft_ms for sample in admitted),
        refused_ms=spread(waits),
        without_wait=sum(sample.retry_after is None for sample in refused),
        next_try=sum(sample.status == 200 for sample in again) / len(again) if again else None,
        broken=sum(not sample.ok and sample not in refused for sample in tries),
    )


def _offered(running: Fleet, bound: Bound, times: float) -> tuple[Verdict, float]:
    """What became of it, and the 99th percentile of `GET /live` in milliseconds."""
    rate, seed, end = times * bound.capacity, int(times), SETTLE_SECONDS + SECONDS
    timed = arrivals.timed(_requests(bound, seed), arrivals.poisson(rate, seed))
    plan = LoadPlan(running.url, Maker("baton-tiny"), obey=OBEY if times > 1 else 0.0)
    load_run = LoadRun(plan, arrivals.until(timed, end))
    live = asyncio.run(_watched(load_run, running.url, 1 / rate))
    slo = Slo(ttft_ms=bound.slo_ms)
    return verdict(load_run.samples, slo, SETTLE_SECONDS, end), live.quantile(0.99)


def _requests(bound: Bound, seed: int) -> Iterator[RequestSpec]:
    """Prompts between half and one and a half of the bound's length."""
    dice = random.Random(seed)
    for number in count():
        tokens = round(bound.prompt_tokens * dice.uniform(0.5, 1.5))
        piece = Piece(f"overload{seed}.{number}", tokens)
        yield RequestSpec("overload", (piece,), bound.output_tokens)


async def _watched(load_run: LoadRun, url: str, interval: float) -> Histogram:
    """Runs the load. Only the gateway answers `GET /live`, so its round trips show what machine and
    client cost."""
    live = Histogram()
    async with aiohttp.ClientSession(url) as session, asyncio.TaskGroup() as group:
        load = group.create_task(load_run.run(), name="load")
        while not load.done():
            began = load_run.now
            async with session.get("/live"):
                live.add((load_run.now - began) * 1000)
            await asyncio.sleep(interval)
    return live


def _show(bound: Bound, rows: list[tuple[Verdict, float]]) -> None:
    best = max(v.good_per_s for v, _ in rows) or 1.0
    print(f"{bound.name}, {bound.capacity:g} requests/s on paper, SLO {bound.slo_ms:g} ms")
    print(
        "load   tries  good/s  of best  in SLO  TTFT p50/p99 ms  refused  in p50/p99 ms  "
        "/live p99  no wait  obeyed"
    )
    for times, (v, live) in zip(TIMES, rows, strict=True):
        share = v.good_per_s / best
        under = share < TARGETS.get(times, 0.0)
        obeyed = "-" if v.next_try is None else f"{v.next_try:.0%}"
        print(
            f"{times:3g}x  {v.tries:>6} {v.good_per_s:>7.2f} {share:>8.0%} {v.attainment:>7.1%} "
            f"{v.ttft_ms.p50:>8.0f}/{v.ttft_ms.p99:<7.0f} {v.refused_ms.count:>7} "
            f"{v.refused_ms.p50:>7.1f}/{v.refused_ms.p99:<6.1f} {live:>10.1f} "
            f"{v.without_wait:>8} {obeyed:>7}"
            f"{'  UNDER TARGET' if under else ''}{f'  {v.broken} broken' if v.broken else ''}"
        )
