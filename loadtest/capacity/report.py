"""What a run showed, as values that a planner reads and as lines that a person reads."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgspec

from loadtest.capacity.workload import Arrival


class Slo(msgspec.Struct, frozen=True, kw_only=True):
    """A request is good if its first token came in `ttft_ms` and its mean time per further token
    was at most `tpot_ms`; 0 = no limit."""

    ttft_ms: float = 0.0
    tpot_ms: float = 0.0


class Sample(msgspec.Struct):
    """One client request. `tries` counts how often it was asked, as an obedient client asks again
    after a refusal; times are seconds, `first` and `done` None until then. `refused` is the code of
    the last refusal, `waits_ms` what each refusal told the client to wait. `beside`: streams of its
    decode worker at its first token, itself included."""

    ask: Arrival
    asked: float
    tries: int = 1
    placed: bool = False
    first: float | None = None
    done: float | None = None
    beside: int = 0
    refused: str = ""
    waits_ms: list[int] = []

    def good(self, slo: Slo) -> bool:
        if self.first is None or self.done is None:
            return False
        ttft = (self.first - self.asked) * 1000
        tpot = (self.done - self.first) * 1000 / max(1, self.ask.output - 1)
        return ttft <= (slo.ttft_ms or ttft) and tpot <= (slo.tpot_ms or tpot)


class Quantiles(msgspec.Struct, frozen=True):
    p50: float
    p90: float
    p99: float


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """`goodput_rps`: good requests that ended in the measured time, per second. `attainment`: share
    of the requests placed in it that were good. `next_try`: share of obedient second tries that
    were placed, None without any. Utilization: share of the time in which an engine worked.
    `cached_share`: of the prompt tokens that engines were to compute, those that their prefix
    caches had.
    `cpu_seconds`: what the whole run took of this process; `router_seconds`: of that, inside the
    core, by what for (`fleet.Cost`)."""

    requests: int
    placed: int
    ended: int
    refused: dict[str, int]
    refused_without_wait: int
    next_try: float | None
    ttft_ms: Quantiles
    itl_ms: Quantiles
    tpot_ms: Quantiles
    goodput_rps: float
    attainment: float
    prefill_utilization: float
    decode_utilization: float
    decode_batch: float
    cached_share: float
    local_prefills: int
    virtual_seconds: float
    router_events: int
    router_seconds: dict[str, float]
    cpu_seconds: float
    memory_mib: float

    @property
    def router_us(self) -> float:
        """The core's CPU time for one request, from Submit to Ended."""
        return self.router_seconds["request"] / max(1, self.requests) * 1e6

    @property
    def resting(self) -> float:
        """Share of a core that workers' reports and ticks take, whether anybody asks or not."""
        return self.router_seconds["beat"] / max(self.virtual_seconds, 1e-9)

    @property
    def events_per_s(self) -> float:
        return self.router_events / self.cpu_seconds if self.cpu_seconds else 0.0


def quantiles(values: Iterable[float]) -> Quantiles:
    ordered = sorted(values)
    return weighted([(value, 1.0) for value in ordered])


def weighted(pairs: Sequence[tuple[float, float]]) -> Quantiles:
    """Of (value, weight), in ascending order of value; zeros when empty."""
    total = sum(weight for _, weight in pairs)
    found = []
    for share in (0.5, 0.9, 0.99):
        passed, at = 0.0, 0.0
        for value, weight in pairs:
            passed, at = passed + weight, value
            if passed >= share * total:
                break
        found.append(at)
    return Quantiles(*found)


def lines(report: Report) -> list[str]:
    """For a person."""
    r = report
    refused = ", ".join(f"{code} {n}" for code, n in sorted(r.refused.items())) or "none"
    again = "" if r.next_try is None else f"; placed at the next try {r.next_try:.0%}"
    asked = f"{r.requests} asked, {r.placed} placed, {r.ended} ended"
    busy = f"prefill {r.prefill_utilization:.0%}, decode {r.decode_utilization:.0%}"
    events = f"{r.router_events} router events at {r.events_per_s:.0f}/s of CPU"
    resting = f"{r.resting:.1%} of a core for beats and ticks"
    joined = f"{r.router_seconds['join']:.2f} s for all to join"
    router = f"{r.router_us:.0f} us of CPU a request, {resting}, {joined}"
    return [
        f"requests      {asked}, {r.local_prefills} with local prefill",
        f"refused       {refused}{again}",
        f"goodput       {r.goodput_rps:.2f} requests/s; {r.attainment:.1%} of the placed met SLO",
        _row("TTFT ms", r.ttft_ms),
        _row("ITL ms", r.itl_ms),
        _row("TPOT ms", r.tpot_ms),
        f"utilization   {busy} at a mean batch of {r.decode_batch:.1f}",
        f"prefix cache  {r.cached_share:.0%} of prompt tokens",
        f"router        {router}",
        f"simulated     {r.virtual_seconds:.1f} s, {events}, {r.memory_mib:.0f} MiB at most",
    ]


def _row(name: str, of: Quantiles) -> str:
    return f"{name:13} p50 {of.p50:.1f}, p90 {of.p90:.1f}, p99 {of.p99:.1f}"
