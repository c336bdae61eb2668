"""What prompts gain that begin before their decode worker has a slot for them.

The production router in virtual time, with a share of `[router] slots_ahead_max` and without. The
ratios are against a router whose prompts wait for a slot, in the same run. Where slots are short
the last line is such a router again, with `max_num_seqs` larger by `MORE`; where KV is short, which
is not forecast, nothing may be lost.

`python -m tests.bench.ahead`
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product
from typing import NamedTuple

from msgspec.structs import replace

from loadtest.capacity.fleet import Fleet, Scenario
from loadtest.capacity.profile import Profile
from loadtest.capacity.report import Report, Slo
from loadtest.capacity.workload import RequestShape, poisson
from services.router.settings import Settings
from tests.bench.balance import PROFILE

ALONE = replace(PROFILE, prefix_cache=False, handoff_ms=5.0)
SLO = Slo(ttft_ms=8_000.0, tpot_ms=60.0)
AHEAD, MORE = (0.0, 0.125, 0.25, 0.5), 8
SHARES = (0.85, 1.0, 1.3)
WARMUP_SECONDS, SECONDS = 30.0, 120.0
SEED = 7


class Case(NamedTuple):
    """A fleet whose decode workers have less room than its prefill workers fill."""

    name: str
    profile: Profile
    shape: RequestShape
    prefills: int
    decodes: int

    @property
    def batch(self) -> int:
        """Requests that a decode worker has room for."""
        asked = self.shape.prompt + self.shape.output * self.shape.slack
        room = Settings().kv_grant_max * self.profile.kv_blocks * self.profile.block_tokens
        return int(min(self.profile.max_num_seqs, room // asked))

    @property
    def rate(self) -> float:
        """Requests per second of decode workers that are always full."""
        step = self.profile.step_seconds(self.batch)
        return self.decodes * self.batch / (self.shape.output * step)


FEW_BLOCKS = replace(ALONE, max_num_seqs=256, kv_blocks=6_000)
CASES = (
    Case("slots, 1,500 + 200 tokens", ALONE, RequestShape(1_500, 200), 4, 2),
    Case("slots, 6,000 + 150 tokens", ALONE, RequestShape(6_000, 150), 16, 2),
    Case("KV, 4,000 + 300 tokens", FEW_BLOCKS, RequestShape(4_000, 300), 6, 2),
)


def played(case: Case, share: float, ahead: float, more: int = 0) -> Report:
    profile = replace(case.profile, max_num_seqs=case.profile.max_num_seqs + more)
    scenario = Scenario(
        profile=profile,
        prefills=case.prefills,
        decodes=case.decodes,
        arrivals=poisson(case.rate * share, WARMUP_SECONDS + SECONDS, case.shape, SEED),
        seconds=SECONDS,
        warmup=WARMUP_SECONDS,
        slo=SLO,
        settings=Settings(ttft_slo_ms=SLO.ttft_ms, worker_timeout_ms=1e12, slots_ahead_max=ahead),
    )
    return Fleet(scenario).run()


def lines(case: Case, share: float) -> Iterator[str]:
    before = played(case, share, 0.0)
    for ahead in AHEAD:
        report = played(case, share, ahead) if ahead else before
        yield told(f"{ahead:g} ahead", report, before)
    if case.batch == case.profile.max_num_seqs:
        yield told(f"{MORE} more slots", played(case, share, 0.0, MORE), before)


def told(name: str, report: Report, before: Report) -> str:
    goodput = report.goodput_rps / before.goodput_rps
    ttft, tpot = report.ttft_ms.p50 / before.ttft_ms.p50, report.tpot_ms.p99 / before.tpot_ms.p99
    return (
        f"  {name:13} goodput x{goodput:.2f}, TTFT p50 x{ttft:.2f}, p99 "
        f"{report.ttft_ms.p99:.0f} ms, TPOT p99 x{tpot:.2f}, mean batch {report.decode_batch:.1f}"
    )


def main() -> None:
    for case, share in product(CASES, SHARES):
        print(f"{case.name}, {case.prefills}P+{case.decodes}D, {share:.0%} of what decode can")
        for line in lines(case, share):
            print(line, flush=True)


if __name__ == "__main__":
    main()
