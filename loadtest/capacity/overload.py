"""A fleet under more load than its capacity.

A bound names the phase that saturates first: the requests are chosen so that the other phase does
not. Capacity is computed from the profile, so `times=1.0` is what the fleet
can just do on paper.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

from loadtest.capacity.fleet import Scenario, run
from loadtest.capacity.profile import Profile
from loadtest.capacity.report import Report, Slo
from loadtest.capacity.workload import RequestShape, poisson
from services.router.settings import Settings

Bound = Literal["prefill", "decode"]
PREFILL_BOUND = RequestShape(prompt=4_000, output=20)
DECODE_BOUND = RequestShape(prompt=400, output=200)


class OverloadFleet(NamedTuple):
    """A fleet and how its clients behave."""

    profile: Profile = Profile()
    prefills: int = 2
    decodes: int = 2
    #: Measured time; a quarter of it is added before as warm-up.
    seconds: float = 60.0
    slo: Slo = Slo(ttft_ms=2_000.0, tpot_ms=100.0)
    deadline_ms: float = 0.0
    #: How often a refused client tries again.
    retries: int = 0
    #: Share of the clients that do.
    obey: float = 1.0
    seed: int = 1


def shape_of(bound: Bound, deadline_ms: float = 0.0) -> RequestShape:
    shape = PREFILL_BOUND if bound == "prefill" else DECODE_BOUND
    return shape._replace(deadline_ms=deadline_ms)


def capacity_rps(
    profile: Profile, prefills: int, decodes: int, shape: RequestShape, kv_grant_max: float
) -> float:
    """Requests per second of the phase that saturates first. Granted KV is what max_tokens asks
    for, so a large `slack` costs capacity."""
    asked = shape.output * shape.slack
    batch_rate = profile.decode_capacity(decodes, shape.prompt, asked, kv_grant_max)
    decode = batch_rate * asked / shape.output
    return min(profile.prefill_capacity(prefills, shape.prompt), decode) if prefills else decode


DEFAULT = OverloadFleet()


def overload(
    times: float, bound: Bound, settings: Settings, bench: OverloadFleet = DEFAULT
) -> Report:
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
