"""Histograms for cores: counts by bucket, without locks or clocks.

The bounds are those of the OpenTelemetry semantic conventions for generative AI servers. Finer ones
are added below them for the time between tokens of a small model on a fast machine.
"""

from __future__ import annotations

from bisect import bisect_left

TTFT_SECONDS = (
    0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0,
)  # fmt: skip
ITL_SECONDS = (
    0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5,
)  # fmt: skip
REQUEST_SECONDS = (
    0.01, 0.02, 0.04, 0.08, 0.16, 0.32, 0.64, 1.28, 2.56, 5.12, 10.24, 20.48, 40.96, 81.92,
)  # fmt: skip
PAUSE_SECONDS = (0.01, 0.02, 0.03, 0.05, 0.1, 0.15, 0.2, 0.3, 0.5, 1.0, 2.0, 5.0)


class Buckets:
    """A histogram. `counts` has one number for each bound, of the values up to and including it,
    and one for the values above all bounds. `total` is the sum of the values."""

    __slots__ = ("bounds", "counts", "total")

    def __init__(self, bounds: tuple[float, ...]) -> None:
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.total = 0.0

    def observe(self, value: float) -> None:
        self.counts[bisect_left(self.bounds, value)] += 1
        self.total += value

    @property
    def count(self) -> int:
        return sum(self.counts)

    def cumulative(self) -> list[tuple[str, float]]:
        """Prometheus' form: for each upper bound the number of values up to it; the last is
        `+Inf`."""
        pairs: list[tuple[str, float]] = []
        below = 0
        for bound, count in zip((*self.bounds, "+Inf"), self.counts, strict=True):
            below += count
            pairs.append((str(bound), float(below)))
        return pairs
