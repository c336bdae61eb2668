"""The targets of the KV handoff, and whether one run of `kv` met them.

They are about bulk, `BULK_BYTES` and more; the worst size decides. Of less, the time is mostly
that of waking who sleeps at both ends, and `make bench ARGS=handoff` measures what that costs a
first token. The digests' share is what they add to the CPU of the copies at both ends, inside the
measured handoffs, in parts of the handoff's wall time, as if both ends copied one after the other.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

BULK_BYTES = 64 << 20
"""500 tokens of a model of 8 billion parameters in bfloat16."""
OF_RAW_MIN = 0.80
DIGEST_SHARE_MAX = 0.03


@dataclass(frozen=True, slots=True)
class Figures:
    """Of one move: seconds and the quartiles around them, and the mean CPU of both ends, whose
    clock is coarser than some moves."""

    seconds: float
    low: float
    high: float
    cpu_seconds: float

    @property
    def cores(self) -> float:
        """Busy on the average while it moved."""
        return self.cpu_seconds / self.seconds


@dataclass(frozen=True, slots=True)
class Row:
    """All paths for one size. `digest_seconds`: CPU that digests add to one handoff, both ends."""

    size: int
    paths: dict[str, Figures]
    digest_seconds: float

    @property
    def of_raw(self) -> float:
        return self.speed_of("handoff", "raw")

    @property
    def of_nixl(self) -> float:
        return self.speed_of("handoff", "nixl")

    @property
    def digest_of_time(self) -> float:
        return self.digest_seconds / self.paths["handoff"].seconds

    @property
    def digest_of_cpu(self) -> float:
        return self.digest_seconds / max(self.paths["handoff"].cpu_seconds, 1e-9)

    def speed_of(self, path: str, other: str) -> float:
        """How many times as fast as the other."""
        return self.paths[other].seconds / self.paths[path].seconds

    def cpu_of(self, path: str, other: str) -> str:
        """How many times the other's CPU, where the clock saw the other use any."""
        own, others = self.paths[path].cpu_seconds, self.paths[other].cpu_seconds
        return f"{own / others:.2f}" if others else "?"


def verdicts(rows: Sequence[Row]) -> list[str]:
    """One line for each target."""
    bulk = [row for row in rows if row.size >= BULK_BYTES]
    if not bulk:
        return [f"no verdict: nothing of {BULK_BYTES >> 20} MiB or more was moved"]
    lines = [
        _line(
            f"bulk, digests on, >= {OF_RAW_MIN:.0%} of raw UCXX",
            bulk,
            lambda row: (
                f"{row.of_raw:.0%} with {row.cpu_of('handoff', 'raw')} of its CPU, which keeps "
                f"{row.paths['raw'].cores:.1f} cores busy"
            ),
            lambda row: row.of_raw >= OF_RAW_MIN,
        )
    ]
    if all("nixl" in row.paths for row in bulk):
        lines.append(
            _line(
                "bulk faster than NIXL",
                bulk,
                lambda row: (
                    f"{row.of_nixl:.2f} times with {row.cpu_of('handoff', 'nixl')} of its CPU"
                ),
                lambda row: row.of_nixl > 1,
            )
        )
    else:
        lines.append("not measured  bulk faster than NIXL")
    lines.append(
        _line(
            f"digests <= {DIGEST_SHARE_MAX:.0%} of the handoff's time",
            bulk,
            lambda row: f"{row.digest_of_time:.1%}, {row.digest_of_cpu:.1%} of its CPU",
            lambda row: row.digest_of_time <= DIGEST_SHARE_MAX,
        )
    )
    return lines


def _line(
    target: str, rows: Sequence[Row], figure: Callable[[Row], str], met: Callable[[Row], bool]
) -> str:
    result = "met" if all(met(row) for row in rows) else "MISSED"
    figures = "; ".join(f"{row.size >> 20} MiB {figure(row)}" for row in rows)
    return f"{result:<13} {target}: {figures}"
