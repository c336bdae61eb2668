"""`make bench-gateway`: what a token and a request cost the gateway process, what it adds to a
stream's time, where it saturates, and a verdict for each target.

The floor (`floor.py`) takes the same messages from the same pump and writes a fixed chunk for each
token. A token's figure includes its share of opening and ending the request (128-token answers), as
the figures of the routers do that users compare with; those are from another day on the same kind
of machine (`PEERS_US`), so the ratio to the floor, of the same run, is what to trust. The floor
writes once per message; on a machine too busy to keep a step's time the gateway writes several
steps at once and can fall below it, so look at the added ITL first.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass

from tests.bench.gateway.rig import Measured, Rig, rig

TOKENS = 128
STREAMS = (32, 256, 1024)
STEP_MS, AT_ONCE = 10.0, 0.0
REQUESTS = 2_000
TTFT_CLIENTS = 32
TTFT_WARM = 100
PAUSE_MS = 200.0
PEERS_US = {(256, STEP_MS): 21.0, (1024, AT_ONCE): 13.0}
"""CPU per token of the best of vllm-router and sglang-router, by streams and step."""
ITL_MS_MAX = 10.0
TTFT_MS_P50_MAX, TTFT_MS_P99_MAX = 2.0, 10.0
DOUBLES = 1.8
CORES_FOR_TWO = 4
"""Two gateways, the pump and the clients."""


@dataclass
class Row:
    streams: int
    step_ms: float
    measured: Measured

    @property
    def tokens(self) -> int:
        return self.streams * TOKENS

    @property
    def token_us(self) -> float:
        return self.measured.cpu / self.tokens * 1e6

    @property
    def itl_ms_p99(self) -> float:
        return at(self.measured.added_itl_ms, 0.99)

    @property
    def per_second(self) -> float:
        """Tokens that came to the clients, from the first step to the last token."""
        last = max(each[-1] for each in self.measured.seen.arrivals)
        return self.tokens / (last - self.measured.sent[0])


@dataclass
class Side:
    """One process, or several of it, under all loads. `request_us`: by clients at a time."""

    rows: list[Row]
    request_us: dict[int, float]

    def row(self, streams: int, step_ms: float) -> Row:
        return next(r for r in self.rows if (r.streams, r.step_ms) == (streams, step_ms))


def main() -> None:
    loads = [(streams, step) for step in (STEP_MS, AT_ONCE) for streams in STREAMS]
    floor, ours = measured(0, loads, STREAMS), measured(1, loads, STREAMS)
    two = measured(2, [(STREAMS[-1], STEP_MS), (STREAMS[-1], AT_ONCE)], ())
    bare, ttft = ttft_ms(0), ttft_ms(1)
    for line in (*table(floor, ours, two), *verdicts(ours, two, bare, ttft)):
        print(line)


def ttft_ms(gateways: int) -> list[float]:
    """Sorted, to the first token; `gateways` 0: without gateway and router, that is, of the floor,
    which asks a worker over the same wire, as an API server asks its engine."""
    with rig(gateways, router=gateways > 0) as running:
        if not gateways:
            running.measure(32, 16, AT_ONCE)
            running.requests(TTFT_WARM, 4)
        running.ttft_ms(TTFT_WARM, 4, 20.0)
        return running.ttft_ms(REQUESTS, TTFT_CLIENTS, PAUSE_MS)


def table(floor: Side, ours: Side, two: Side) -> list[str]:
    head = (
        f"{'':14}{'streams':>8} {'step':>6} {'floor':>7} {'µs/token':>9} {'ratio':>6}"
        f" {'added ITL p50/p99 ms':>22} {'transit p99 ms':>15} {'tokens/s':>9}"
    )
    about = "CPU µs of the process under test; 128-token answers, its share of the request included"
    lines = [about, head]
    for row in ours.rows:
        bare = floor.row(row.streams, row.step_ms).token_us
        lines.append(f"{'one process':14}{told(row, bare)}")
    for row in two.rows:
        bare = floor.row(row.streams, row.step_ms).token_us
        lines.append(f"{'two processes':14}{told(row, bare)}")
    lines.append(
        f"{'':14}{'clients':>8} {'':6} {'floor':>7} {'µs/request, 1 token, not streamed':>34}"
    )
    for clients, cost in ours.request_us.items():
        bare = floor.request_us[clients]
        lines.append(
            f"{'one process':14}{clients:8} {'':6} {bare:7.0f} {cost:9.0f} {cost / bare:6.2f}"
        )
    return lines


def told(row: Row, bare: float) -> str:
    added, transit = row.measured.added_itl_ms, row.measured.transit_ms
    return (
        f"{row.streams:8} {row.step_ms:4.0f}ms {bare:7.1f} {row.token_us:9.1f}"
        f" {row.token_us / bare:6.2f} {at(added, 0.5):11.2f} / {row.itl_ms_p99:8.2f}"
        f" {at(transit, 0.99):15.2f} {row.per_second:9.0f}"
    )


def verdicts(ours: Side, two: Side, bare: Sequence[float], ttft: Sequence[float]) -> list[str]:
    """`bare`, `ttft`: sorted, of the floor and of the whole path."""
    lines = [
        verdict(
            ours.row(*load).token_us < best,
            f"under the best router's CPU per token, {load[0]} streams, {load[1]:.0f} ms: "
            f"{ours.row(*load).token_us:.1f} of {best:.0f} µs",
        )
        for load, best in PEERS_US.items()
    ]
    most = ours.row(STREAMS[-1], STEP_MS)
    lines.append(
        verdict(
            most.itl_ms_p99 < ITL_MS_MAX,
            f"{most.streams} streams x {STEP_MS:.0f} ms on one process, p99 added ITL under "
            f"{ITL_MS_MAX:.0f} ms: {most.itl_ms_p99:.1f} ms",
        )
    )
    full = ours.row(STREAMS[-1], AT_ONCE)
    core = 1e6 / full.token_us
    lines.append(
        f"note  one process saturates near {core:,.0f} tokens/s ({full.token_us:.1f} µs each), "
        f"{core * STEP_MS / 1000:,.0f} streams x {STEP_MS:.0f} ms"
    )
    lines.append(doubling(full, two.row(STREAMS[-1], AT_ONCE)))
    p50, p99 = (at(ttft, share) - at(bare, 0.5) for share in (0.5, 0.99))
    lines.append(
        verdict(
            p50 < TTFT_MS_P50_MAX and p99 < TTFT_MS_P99_MAX,
            f"TTFT added by gateway and router, {TTFT_CLIENTS} clients: "
            f"p50 {p50:.2f} of {TTFT_MS_P50_MAX:.0f} ms, p99 {p99:.2f} of {TTFT_MS_P99_MAX:.0f} ms "
            f"(floor and worker alone: p50 {at(bare, 0.5):.2f} ms)",
        )
    )
    return lines


def doubling(one: Row, two: Row) -> str:
    factor = two.per_second / one.per_second
    sentence = (
        f"two processes carry {factor:.2f} times the tokens of one "
        f"({two.token_us:.1f} and {one.token_us:.1f} µs each)"
    )
    cores = len(os.sched_getaffinity(0))
    if cores < CORES_FOR_TWO:
        return f"note  {sentence}; {cores} cores cannot show more, pump and clients need theirs"
    return verdict(factor >= DOUBLES, sentence)


def verdict(holds: bool, sentence: str) -> str:
    return f"{'holds' if holds else 'FAILS'} {sentence}"


def measured(gateways: int, loads: Sequence[tuple[int, float]], clients: Sequence[int]) -> Side:
    """`gateways` 0: the floor."""
    with rig(gateways) as running:
        running.measure(32, 16, AT_ONCE)
        rows = [one_row(running, streams, step) for streams, step in loads]
        return Side(rows, {count: request_us(running, count) for count in clients})


def one_row(running: Rig, streams: int, step_ms: float) -> Row:
    found = running.measure(streams, TOKENS, step_ms)
    short = [len(each) for each in found.seen.arrivals if len(each) < TOKENS]
    assert not short, f"{len(short)} streams were cut short"
    return Row(streams, step_ms, found)


def request_us(running: Rig, clients: int) -> float:
    done = running.requests(REQUESTS, clients)
    assert len(done.seen.seconds) == REQUESTS, done.seen.first_bad
    return done.cpu / REQUESTS * 1e6


def at(ordered: Sequence[float], share: float) -> float:
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]


if __name__ == "__main__":
    main()
