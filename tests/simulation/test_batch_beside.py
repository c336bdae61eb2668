"""A batch beside other requests, in virtual time: what it costs them, and what it uses.

The lines are of one length, which is the worst: those that begin together end together.
"""

from __future__ import annotations

from functools import cache
from typing import NamedTuple

import msgspec
import pytest

from loadtest.capacity.batch import BatchShape
from loadtest.capacity.fleet import Fleet, Scenario
from loadtest.capacity.profile import Profile
from loadtest.capacity.workload import RequestShape, poisson

PROFILE = Profile(
    decode_step_ms=60.0,
    decode_step_ms_per_seq=0.05,
    block_tokens=128,
    kv_blocks=2048,
    prefix_cache=False,
)
#: At this rate P computes three quarters of the time.
BUSY = 8_000.0
ASKED = RequestShape(prompt=4_000, output=100, spread=0.0, slack=1.0)
#: Computed by D, and by P.
SHORT = RequestShape(prompt=40, output=60, spread=0.0, slack=1.0)
LONG = RequestShape(prompt=200, output=200, spread=0.0, slack=1.0)
WARMUP_SECONDS, SECONDS = 30.0, 240.0


class Beside(NamedTuple):
    #: TTFT of each request that is no line, in ascending order.
    ttft_ms: list[float]
    #: Share of the decode slots left by them that lines had.
    idle_used: float

    def quantile(self, share: float) -> float:
        return self.ttft_ms[int(share * (len(self.ttft_ms) - 1))]


@cache
def asked(line: RequestShape | None, tokens_per_s: float) -> Beside:
    """Virtual time and a fixed seed: the same arrivals at each call."""
    scenario = Scenario(
        profile=msgspec.structs.replace(PROFILE, prefill_tokens_per_s=tokens_per_s),
        prefills=1,
        decodes=2,
        arrivals=poisson(1.5, WARMUP_SECONDS + SECONDS, ASKED, seed=1),
        seconds=SECONDS,
        warmup=WARMUP_SECONDS,
        batch=BatchShape(line) if line is not None else None,
    )
    fleet = Fleet(scenario)
    fleet.run()
    waits = [
        (sample.first - sample.asked) * 1000
        for sample in fleet.samples
        if sample.first and sample.asked >= WARMUP_SECONDS
    ]
    return Beside(sorted(waits), fleet.batch.idle_used if fleet.batch is not None else 0.0)


@pytest.mark.parametrize(
    ("line", "tokens_per_s"),
    [(SHORT, 20_000.0), (LONG, 20_000.0), (SHORT, BUSY)],
    ids=["short", "long", "short-and-P-busy"],
)
def test_a_batch_costs_the_others_little_of_their_first_token(
    line: RequestShape, tokens_per_s: float
) -> None:
    alone, beside = asked(None, tokens_per_s), asked(line, tokens_per_s)
    assert len(alone.ttft_ms) == len(beside.ttft_ms) > 300
    for share, ratio in ((0.5, 1.05), (0.9, 1.05), (0.99, 1.05), (1.0, 1.15)):
        assert beside.quantile(share) <= ratio * alone.quantile(share), share
    assert beside.idle_used >= 0.9
