"""What a load leaves behind: one struct, written as JSON, shown as a table or a page."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from loadtest.bench.driver import Drive
from loadtest.bench.figures import Figures, Spread, figures
from loadtest.bench.samples import Sample
from loadtest.capacity.report import Slo
from loadtest.provenance import Provenance

FORMAT = "baton-bench-1"
POINTS_MAX = 4_000
"""Requests whose instants are kept for plots: evenly chosen where there were more."""


class Workload(msgspec.Struct, frozen=True, kw_only=True):
    """What was asked for, in words that reproduce it. `skipped`: requests of a trace that the model
    cannot hold, not sent."""

    command: str
    source: str
    arrivals: str
    url: str
    model: str
    api: str
    seed: int
    slo: Slo
    rows: int = 0
    bad_rows: int = 0
    bad_named: list[str] = []
    skipped: int = 0


class Point(msgspec.Struct, frozen=True, array_like=True):
    """For plots: seconds (intended), prompt tokens, milliseconds or None, and whether it failed."""

    due: float
    prompt: int
    ttft_ms: float | None
    e2e_ms: float | None
    tpot_ms: float | None
    failed: bool


class Result(msgspec.Struct, frozen=True, kw_only=True):
    """`partial`: why the load was stopped early, empty when it was not. `by_kind`: the same figures
    for each kind of request where there are several, without ITL. `phases`: of sampled requests,
    by the router's timeline."""

    format: str
    provenance: Provenance
    workload: Workload
    partial: str
    all: Figures
    by_kind: dict[str, Figures]
    phases: dict[str, Spread]
    tokens_by_second: list[int]
    open_by_second: list[int]
    points: list[Point]


def result(
    drive: Drive, workload: Workload, provenance: Provenance, phases: dict[str, Spread]
) -> Result:
    exact = workload.api == "completions"
    kinds = sorted({each.kind for each in drive.samples})
    by_kind = {
        kind: figures(
            [each for each in drive.samples if each.kind == kind],
            type(drive.gaps)(),
            workload.slo,
            exact_prompts=exact,
        )
        for kind in kinds
    }
    return Result(
        format=FORMAT,
        provenance=provenance,
        workload=workload,
        partial=drive.stopped,
        all=figures(drive.samples, drive.gaps, workload.slo, exact_prompts=exact),
        by_kind=by_kind if len(kinds) > 1 else {},
        phases=phases,
        tokens_by_second=list(drive.tokens_by_second),
        open_by_second=open_by_second(drive.samples, drive.now),
        points=[_point(each) for each in thinned(drive.samples)],
    )


def open_by_second(samples: Sequence[Sample], end: float) -> list[int]:
    """Requests sent and not ended, at the end of each second."""
    changes = [0] * (int(end) + 2)
    for each in samples:
        if each.sent is not None:
            changes[int(each.sent)] += 1
            over = each.done if each.done is not None else each.last
            changes[min(len(changes) - 1, int(over if over is not None else each.sent))] -= 1
    level, levels = 0, []
    for change in changes[:-1]:
        level += change
        levels.append(level)
    return levels


def thinned(samples: Sequence[Sample]) -> Sequence[Sample]:
    step = -(-len(samples) // POINTS_MAX)
    return samples[::step] if step else samples


def _point(each: Sample) -> Point:
    return Point(
        due=round(each.due, 3),
        prompt=each.prompt,
        ttft_ms=_rounded(each.ttft_ms),
        e2e_ms=_rounded(each.e2e_ms),
        tpot_ms=_rounded(each.tpot_ms),
        failed=bool(each.error),
    )


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 2)
