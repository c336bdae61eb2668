"""What prefills would gain that begin before their decode worker has room for them.

Today a prompt is computed once a decode worker has promised it a slot and KV, which lie idle until
the KV is there. Here decode workers say so many slots, and KV for as many requests, more than they
have: an upper bound of what a forecast of their room could gain, in virtual time with the
production router. What has no place yet waits with its KV on the prefill worker. The ratios are
against the router as it is, in the same run; the last line of each load is the router as it is,
with `max_num_seqs` larger by `MORE` instead.

`python -m tests.bench.ahead`
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterator
from itertools import product
from typing import Any, NamedTuple

from msgspec.structs import replace

from common.blocks import kv_need
from common.engine.port import EngineRequest
from common.identity import AttemptKey
from common.messages import Delta, Load
from loadtest.capacity import fleet as capacity_fleet
from loadtest.capacity.engine import Job
from loadtest.capacity.fleet import Fleet, Scenario
from loadtest.capacity.profile import Profile
from loadtest.capacity.report import Report, Slo
from loadtest.capacity.workers import INCARNATION, DecodeModel
from loadtest.capacity.workload import RequestShape, poisson
from services.decode.core import DecodeCore
from services.decode.grant_limit import grant_limit_of
from services.router.settings import Settings
from tests.bench.balance import PROFILE
from tests.simulation.mutants import planted

ALONE = replace(PROFILE, prefix_cache=False, handoff_ms=5.0)
SLO = Slo(ttft_ms=8_000.0, tpot_ms=60.0)
AHEAD, MORE = (0, 2, 4, 8), 8
SHARES = (0.85, 1.3)
WARMUP_SECONDS, SECONDS = 30.0, 120.0
SEED = 7


class Case(NamedTuple):
    """A fleet whose decode workers have less room than its prefill workers fill."""

    name: str
    profile: Profile
    shape: RequestShape
    prefills: int
    decodes: int
    #: Whether a handoff must wait for room, because it is KV that lacks.
    waits: bool = False

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
    Case("KV, 4,000 + 300 tokens", FEW_BLOCKS, RequestShape(4_000, 300), 6, 2, waits=True),
)


class Generous(DecodeModel):
    """Says more room than it has, and lets in what has a place."""

    case: Case
    ahead: int

    def __init__(self, *parts: Any, model: str = "model") -> None:
        super().__init__(*parts, model=model)
        self._limit = grant_limit_of(self.capacity, parts[-1])
        asked = round(self.case.shape.prompt + self.case.shape.output * self.case.shape.slack)
        blocks = math.ceil(self.ahead * asked / self.capacity.block_tokens / parts[-1])
        self.capacity = replace(
            self.capacity,
            max_num_seqs=self.capacity.max_num_seqs + self.ahead,
            kv_blocks=self.capacity.kv_blocks + blocks,
        )
        self.core = DecodeCore(self.name, INCARNATION, grant_limit_of(self.capacity, parts[-1]))
        self._inside: dict[AttemptKey, int] = {}
        self._waiting: deque[Job] = deque()
        self._came: set[AttemptKey] = set()

    def load(self) -> Load:
        used = sum(self._inside.values()) / max(1, self._limit.kv_tokens_max)
        return Load(running=len(self._inside), kv_used=min(1.0, used * Settings().kv_grant_max))

    def deliver_kv(self, key: AttemptKey) -> None:
        if key in self._inside:
            super().deliver_kv(key)
        else:
            self._came.add(key)

    def _start(self, job: Job, added: EngineRequest) -> None:
        self._waiting.append(job)
        self._let_in()
        super()._start(job, added)

    def _stream(self, delta: Delta) -> None:
        super()._stream(delta)
        if delta.finish_reason:
            del self._inside[delta.request_id, delta.attempt]
            self._let_in()

    def _let_in(self) -> None:
        while self._waiting:
            job = self._waiting[0]
            need = kv_need(job.arrival.prompt + job.arrival.max_tokens, self._limit.block_tokens)
            if self._limit.why_refused(len(self._inside), sum(self._inside.values()) + need):
                return
            self._inside[self._waiting.popleft().key] = need
            if job.key in self._came:
                self._came.remove(job.key)
                sent = self._profile.transfer_seconds(job.arrival.prompt, job.cached)
                late = sent + self._profile.handoff_ms / 1000 if self.case.waits else 0.0
                self._time.after(late, lambda key=job.key: self.deliver_kv(key))  # type: ignore[misc]


def played(case: Case, share: float, ahead: int, more: int = 0) -> Report:
    Generous.case, Generous.ahead = case, ahead
    profile = replace(case.profile, max_num_seqs=case.profile.max_num_seqs + more)
    scenario = Scenario(
        profile=profile,
        prefills=case.prefills,
        decodes=case.decodes,
        arrivals=poisson(case.rate * share, WARMUP_SECONDS + SECONDS, case.shape, SEED),
        seconds=SECONDS,
        warmup=WARMUP_SECONDS,
        slo=SLO,
        settings=Settings(ttft_slo_ms=SLO.ttft_ms, worker_timeout_ms=1e12),
    )
    return Fleet(scenario).run()


def lines(case: Case, share: float) -> Iterator[str]:
    before = played(case, share, 0)
    for ahead in AHEAD:
        yield told(f"{ahead} ahead", before if not ahead else played(case, share, ahead), before)
    if not case.waits:
        yield told(f"{MORE} more slots", played(case, share, 0, MORE), before)


def told(name: str, report: Report, before: Report) -> str:
    goodput = report.goodput_rps / before.goodput_rps
    ttft, tpot = report.ttft_ms.p50 / before.ttft_ms.p50, report.tpot_ms.p99 / before.tpot_ms.p99
    return (
        f"  {name:13} goodput x{goodput:.2f}, TTFT p50 x{ttft:.2f}, TPOT p99 x{tpot:.2f}, "
        f"mean batch {report.decode_batch:.1f}"
    )


def main() -> None:
    for case, share in product(CASES, SHARES):
        print(f"{case.name}, {case.prefills}P+{case.decodes}D, {share:.0%} of what decode can")
        with planted(capacity_fleet, "DecodeModel", Generous):
            for line in lines(case, share):
                print(line, flush=True)


if __name__ == "__main__":
    main()
