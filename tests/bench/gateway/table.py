"""`make bench-gateway`: CPU of the gateway process per token and per request, against a floor.

The floor (`floor.py`) takes the same messages from the same pump and writes a fixed chunk for each
token. A token's figure includes its share of opening and ending the request (128-token answers), as
the figures of the routers do that users compare with. The floor writes once per message; on a
machine too busy to keep a step's time the gateway writes several steps at once and can fall below
it, so look at the added ITL first.
"""

from __future__ import annotations

from dataclasses import dataclass

from tests.bench.gateway.rig import Measured, Rig, rig

TOKENS = 128
STREAMS = (32, 256, 1024)
INTERVALS_MS = (10.0, 0.0)
REQUESTS = 2_000
REQUEST_STREAMS = 32
PAUSE_MS = 200.0


@dataclass
class Row:
    streams: int
    interval_ms: float
    measured: Measured

    @property
    def token_us(self) -> float:
        return self.measured.cpu / (self.streams * TOKENS) * 1e6


def main() -> None:
    print("CPU µs per token of the process under test, 128-token answers; ratio to the floor")
    print(f"{'streams':>8} {'step':>6} {'floor':>7} {'gateway':>8} {'ratio':>6}"
          f" {'added ITL p50/p99 ms':>22} {'transit p99 ms':>15}")  # fmt: skip
    floor, floor_request = _all(0)
    ours, our_request = _all(1)
    for bare, row in zip(floor, ours, strict=True):
        added, transit = row.measured.added_itl_ms, row.measured.transit_ms
        print(
            f"{row.streams:8} {row.interval_ms:4.0f}ms {bare.token_us:7.1f} {row.token_us:8.1f}"
            f" {row.token_us / bare.token_us:6.2f}"
            f" {_at(added, 0.5):10.2f} / {_at(added, 0.99):8.2f} {_at(transit, 0.99):15.2f}"
        )
    with rig(1, router=True) as running:
        running.ttft_ms(100, 4, 20.0)
        ttft = running.ttft_ms(REQUESTS, REQUEST_STREAMS, PAUSE_MS)
    print(f"TTFT through gateway and router, {REQUEST_STREAMS} clients, {len(ttft)} requests: "
          f"p50 {_at(ttft, 0.5):.2f} ms, p99 {_at(ttft, 0.99):.2f} ms")  # fmt: skip
    print(f"per request (1 token, not streamed, {REQUEST_STREAMS} at a time): floor "
          f"{floor_request:.0f} µs, gateway {our_request:.0f} µs")  # fmt: skip


def _all(gateways: int) -> tuple[list[Row], float]:
    with rig(gateways) as running:
        running.measure(32, 16, 0.0)
        rows = [_row(running, n, step) for step in INTERVALS_MS for n in STREAMS]
        done = running.requests(REQUESTS, REQUEST_STREAMS)
        assert len(done.seen.seconds) == REQUESTS, done.seen.bad
        return rows, done.cpu / REQUESTS * 1e6


def _row(running: Rig, streams: int, interval_ms: float) -> Row:
    measured = running.measure(streams, TOKENS, interval_ms)
    short = [len(each) for each in measured.seen.arrivals if len(each) < TOKENS]
    assert not short, f"{len(short)} streams were cut short"
    return Row(streams, interval_ms, measured)


def _at(ordered: list[float], share: float) -> float:
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]


if __name__ == "__main__":
    main()
