"""Goodput of a real fleet with simulated engines at 1 to 4 times its capacity, by what gives out.

All daemons are real, over HTTP; only the engines' time is modelled, so that capacity is known. The
ratio is goodput over the best goodput of the same run. One client in ten obeys `Retry-After`. The
time of a refusal stands beside that of `GET /live` in the same load: on a busy machine both grow.
"""

from __future__ import annotations

import asyncio
from typing import NamedTuple

from loadtest.overload.offer import OfferedLoad, offer
from loadtest.overload.outcomes import OverloadFigures, quantile, summarise
from tests.fleet.running import Fleet, fleet

TIMES = (1.0, 2.0, 3.0, 4.0)
SECONDS = 16.0
SETTLE_SECONDS = 4.0
OBEY = 0.1
TARGETS = {2.0: 0.90, 4.0: 0.85}


class Bound(NamedTuple):
    """`capacity`: requests/s that the bound phase can do on paper. `slo_ms`: of TTFT."""

    name: str
    prompt_chars: int
    output_tokens: int
    slo_ms: float
    capacity: float
    env: dict[str, str]


PREFILL = Bound(
    name="prefill-bound",
    prompt_chars=800,
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
    prompt_chars=200,
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


def _offered(running: Fleet, bound: Bound, times: float) -> tuple[OverloadFigures, float]:
    """What became of it, and the 99th percentile of `GET /live` in milliseconds."""
    load = OfferedLoad(
        url=running.url,
        model="baton-tiny",
        rate=times * bound.capacity,
        seconds=SETTLE_SECONDS + SECONDS,
        prompt_chars=bound.prompt_chars,
        output_tokens=bound.output_tokens,
        obey=OBEY if times > 1 else 0.0,
        seed=int(times),
    )
    offered = asyncio.run(offer(load))
    end = SETTLE_SECONDS + SECONDS
    verdict = summarise(offered.outcomes, bound.slo_ms, SETTLE_SECONDS, end)
    return verdict, quantile(offered.live_ms, 0.99)


def _show(bound: Bound, rows: list[tuple[OverloadFigures, float]]) -> None:
    best = max(verdict.good_per_s for verdict, _ in rows) or 1.0
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
            f"{v.ttft_p50_ms:>8.0f}/{v.ttft_p99_ms:<7.0f} {sum(v.refused.values()):>7} "
            f"{v.refused_p50_ms:>7.1f}/{v.refused_p99_ms:<6.1f} {live:>10.1f} "
            f"{v.without_wait:>8} {obeyed:>7}"
            f"{'  UNDER TARGET' if under else ''}{f'  {v.broken} broken' if v.broken else ''}"
        )
