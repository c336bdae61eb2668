"""The figures of a simulation, as values for a planner and as lines for a person."""

from __future__ import annotations

import enum
from collections.abc import Iterable, Sequence

import msgspec

from loadtest.capacity.workload import Arrival


class Slo(msgspec.Struct, frozen=True, kw_only=True):
    """The limits of a good request; 0 = no limit."""

    #: Limit of the time to the first token.
    ttft_ms: float = 0.0
    #: Limit of the mean time per further token.
    tpot_ms: float = 0.0


class Cost(enum.StrEnum):
    """What the CPU time of the router is spent on."""

    #: Workers that join.
    JOIN = "join"
    #: Reports and ticks, which come with or without load.
    BEAT = "beat"
    #: Requests.
    REQUEST = "request"


class ClientSample(msgspec.Struct):
    """One client. Instants are seconds, `first` and `done` None until they are reached."""

    arrival: Arrival
    asked: float
    #: How often the client asked.
    tries: int = 1
    placed: bool = False
    first: float | None = None
    done: float | None = None
    #: Streams of the decode worker at the first token, this one included.
    beside: int = 0
    #: Code of the last refusal.
    refused: str = ""
    #: The retry-after of each refusal.
    waits_ms: list[int] = []

    def good(self, slo: Slo) -> bool:
        if self.first is None or self.done is None:
            return False
        ttft = (self.first - self.asked) * 1000
        tpot = (self.done - self.first) * 1000 / max(1, self.arrival.output - 1)
        return ttft <= (slo.ttft_ms or ttft) and tpot <= (slo.tpot_ms or tpot)


class Quantiles(msgspec.Struct, frozen=True):
    p50: float
    p90: float
    p99: float


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """The figures of one simulation."""

    requests: int
    placed: int
    ended: int
    refused: dict[str, int]
    refused_without_wait: int
    #: Share of second tries that were placed; None without any.
    next_try: float | None
    ttft_ms: Quantiles
    itl_ms: Quantiles
    tpot_ms: Quantiles
    #: Good requests that ended in the measured time, per second.
    goodput_rps: float
    #: Share of good requests among those that got a first token.
    attainment: float
    #: Share of the time in which the prefill engines worked.
    prefill_utilization: float
    #: The same of the decode engines.
    decode_utilization: float
    #: Mean batch of a working decode engine.
    decode_batch: float
    #: Share of the prompt tokens that the prefix caches or stores had.
    cached_share: float
    local_prefills: int
    virtual_seconds: float
    router_events: int
    #: CPU seconds inside the core by cause (`Cost`).
    router_seconds: dict[str, float]
    #: CPU seconds of the whole run.
    cpu_seconds: float
    memory_mib: float

    @property
    def router_us(self) -> float:
        """The core's CPU time for one request, from Submit to Ended."""
        return self.router_seconds["request"] / max(1, self.requests) * 1e6

    @property
    def resting(self) -> float:
        """Share of a core that workers' reports and ticks take, with or without load."""
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
