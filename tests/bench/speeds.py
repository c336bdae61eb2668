"""What a fleet of workers that are not equally fast serves: the production router in virtual time.

Half of the workers of a role are slower. What such a fleet serves well is compared with the sum of
what its fast workers and its slow ones serve, each alone behind a router of its own: the ratio is
the figure. The last cases have a role that is three times as fast as the other.

`python -m tests.bench.speeds [PART OF A CASE'S NAME]`
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from msgspec.structs import replace

from common.messages import Role
from loadtest.capacity.fleet import Fleet, Scenario
from loadtest.capacity.profile import Profile
from loadtest.capacity.report import Report, Slo
from loadtest.capacity.workload import RequestShape, poisson
from services.router.settings import Settings
from tests.bench.balance import PROFILE

ALONE = replace(PROFILE, prefix_cache=False, handoff_ms=5.0)
SLO = Slo(ttft_ms=4_000.0, tpot_ms=60.0)
SLOW = 0.5
SHARES = (0.7, 0.8, 0.9, 1.0, 1.1)
"""Of the load at which the slower role is always busy."""
WARMUP_SECONDS, SECONDS = 40.0, 120.0
SEED = 7


class Case(NamedTuple):
    """A fleet, of which a half of one role is slower."""

    name: str
    role: Role
    shape: RequestShape
    prefills: int
    decodes: int
    """Of which each half alone has a half."""


CASES = (
    Case("decode workers of two speeds", Role.DECODE, RequestShape(1_000, 200), 8, 4),
    Case("prefill workers of two speeds", Role.PREFILL, RequestShape(3_000, 60), 4, 8),
    Case("workers of two speeds that do both", Role.DECODE, RequestShape(2_000, 60), 0, 8),
)
EVEN = Case("as fast as each other", Role.DECODE, RequestShape(2_000, 120), 4, 4)
OVERLOAD = 1.3
PAIR = (Role.PREFILL, Role.DECODE)
PACES: Mapping[str, Mapping[Role, Sequence[float]]] = {
    "prefill three times as fast": {Role.PREFILL: (3.0,)},
    "decode three times as fast": {Role.DECODE: (3.0,)},
}


def batch_within(profile: Profile, tpot_ms: float) -> int:
    """The largest batch whose steps are no longer than this."""
    fits = [
        b for b in range(1, profile.max_num_seqs + 1) if profile.step_seconds(b) * 1e3 < tpot_ms
    ]
    return max(fits, default=0)


def capacity(case: Case, profile: Profile, prefills: int, decodes: int) -> float:
    """Requests per second that these workers can serve within the SLO; without prefill workers
    they compute prompts, too."""
    batch = batch_within(profile, SLO.tpot_ms)
    if not prefills:
        steps = case.shape.output * profile.step_seconds(batch) / batch
        return decodes / (profile.prefill_seconds(case.shape.prompt) + steps)
    decode = decodes * batch / (case.shape.output * profile.step_seconds(batch))
    return min(decode, profile.prefill_capacity(prefills, case.shape.prompt))


def played(
    case: Case, rate: float, prefills: int, decodes: int, speeds: Mapping[Role, Sequence[float]]
) -> Report:
    scenario = Scenario(
        profile=ALONE,
        prefills=prefills,
        decodes=decodes,
        arrivals=poisson(rate, WARMUP_SECONDS + SECONDS, case.shape, SEED),
        seconds=SECONDS,
        warmup=WARMUP_SECONDS,
        slo=SLO,
        settings=Settings(
            mode="disaggregated" if prefills else "replicated",
            ttft_slo_ms=SLO.ttft_ms,
            itl_slo_ms=SLO.tpot_ms,
            worker_timeout_ms=1e12,
        ),
        speeds=speeds,
    )
    return Fleet(scenario).run()


def best(case: Case, speed: float | None) -> tuple[float, Report]:
    """The best of all loads, for one half of the role alone, or for all of it (None)."""
    whole = speed is None
    speeds: dict[Role, Sequence[float]] = {case.role: (1.0, SLOW) if whole else (speed or 1.0,)}
    share = 1.0 if whole else 0.5
    prefills = round(case.prefills * (share if case.role is Role.PREFILL else 1.0))
    decodes = round(case.decodes * (share if case.role is Role.DECODE else 1.0))
    mean = (1.0 + SLOW) / 2 if whole else speed or 1.0
    rate = capacity(case, ALONE, prefills, decodes) * mean
    reports = [played(case, rate * one, prefills, decodes, speeds) for one in SHARES]
    report = max(reports, key=lambda one: one.goodput_rps)
    return report.goodput_rps, report


def lines(case: Case) -> Iterator[str]:
    fast, slow = best(case, 1.0)[0], best(case, SLOW)[0]
    both, report = best(case, None)
    yield (
        f"{case.name}: {both:.2f} requests/s of {fast:.2f} + {slow:.2f}: {both / (fast + slow):.2f}"
        f"; {report.attainment:.1%} of the placed met the SLO, TPOT p99 {report.tpot_ms.p99:.0f} ms"
    )


def uneven(case: Case, name: str, speeds: Mapping[Role, Sequence[float]]) -> str:
    """More is asked of the fleet than its slower role can do."""
    profiles = {role: ALONE.at_speed(speeds.get(role, (1.0,))[0]) for role in PAIR}
    batch = batch_within(profiles[Role.DECODE], SLO.tpot_ms)
    step = profiles[Role.DECODE].step_seconds(batch)
    decode = case.decodes * batch / (case.shape.output * step)
    prefill = profiles[Role.PREFILL].prefill_capacity(case.prefills, case.shape.prompt)
    report = played(case, OVERLOAD * min(prefill, decode), case.prefills, case.decodes, speeds)
    return (
        f"{name}: {report.goodput_rps:.2f} requests/s where the slower role allows "
        f"{min(prefill, decode):.2f}, {report.attainment:.1%} of the placed met the SLO"
    )


def main() -> None:
    chosen = sys.argv[1:] or [""]
    for case in [one for one in CASES if any(name in one.name for name in chosen)]:
        for line in lines(case):
            print(line, flush=True)
    for name, speeds in PACES.items() if chosen == [""] else ():
        print(uneven(EVEN, name, speeds), flush=True)


if __name__ == "__main__":
    main()
