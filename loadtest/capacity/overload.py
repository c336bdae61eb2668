"""What becomes of a fleet that is asked for more than it can do.

A bound names the phase that gives out first: the shape of the requests is chosen so that the other
phase has room to spare. Capacity is computed from the profile, so `times=1.0` is what the fleet
can just do on paper.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

from loadtest.capacity.fleet import Scenario, run
from loadtest.capacity.profile import Profile
from loadtest.capacity.report import Report, Slo
from loadtest.capacity.workload import Shape, poisson
from services.router.settings import Settings

Bound = Literal["prefill", "decode"]
PREFILL_BOUND = Shape(prompt=4_000, output=20)
DECODE_BOUND = Shape(prompt=400, output=200)


class Bench(NamedTuple):
    """The fleet and what is asked of it. `seconds`: measured time, after a quarter of it to warm
    up. `retries`: how often a refused client obeys and asks again, `obey`: the share of those that
    do at all."""

    profile: Profile = Profile()
    prefills: int = 2
    decodes: int = 2
    seconds: float = 60.0
    slo: Slo = Slo(ttft_ms=2_000.0, tpot_ms=100.0)
    deadline_ms: float = 0.0
    retries: int = 0
    obey: float = 1.0
    seed: int = 1


def shape_of(bound: Bound, deadline_ms: float = 0.0) -> Shape:
    shape = PREFILL_BOUND if bound == "prefill" else DECODE_BOUND
    return shape._replace(deadline_ms=deadline_ms)


def capacity_rps(
    profile: Profile, prefills: int, decodes: int, shape: Shape, kv_grant_max: float
) -> float:
    """Requests per second of the phase that gives out first. Granted KV is what max_tokens asks
    for, so a large `slack` costs capacity."""
    asked = shape.output * shape.slack
    batch_rate = profile.decode_capacity(decodes, shape.prompt, asked, kv_grant_max)
    decode = batch_rate * asked / shape.output
    return min(profile.prefill_capacity(prefills, shape.prompt), decode) if prefills else decode


DEFAULT = Bench()


def overload(times: float, bound: Bound, settings: Settings, bench: Bench = DEFAULT) -> Report:
    """The fleet at `times` its capacity. `settings`: the router's, so that admission can be
    compared."""
    shape = shape_of(bound, bench.deadline_ms)
    can = capacity_rps(bench.profile, bench.prefills, bench.decodes, shape, settings.kv_grant_max)
    warmup = bench.seconds / 4
    return run(
        Scenario(
            profile=bench.profile,
            prefills=bench.prefills,
            decodes=bench.decodes,
            arrivals=poisson(times * can, warmup + bench.seconds, shape, bench.seed),
            seconds=bench.seconds,
            warmup=warmup,
            slo=bench.slo,
            settings=settings,
            retries=bench.retries,
            obey=bench.obey,
        )
    )
