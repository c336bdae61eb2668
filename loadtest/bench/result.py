"""The result of a load: one struct, written as JSON, shown as a table or a page."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from loadtest.bench.driver import LoadRun
from loadtest.bench.figures import Figures, Spread, figures
from loadtest.bench.sample import Sample
from loadtest.capacity.report import Slo
from loadtest.provenance import Provenance

FORMAT = "baton-bench-1"
POINTS_MAX = 4_000
"""Requests whose instants are kept for plots: evenly chosen where there were more."""


class Workload(msgspec.Struct, frozen=True, kw_only=True):
    """What was sent, in terms that reproduce it."""

    command: str
    source: str
    arrivals: str
    url: str
    model: str
    api: str
    seed: int
    slo: Slo
    #: Good rows of the trace.
    rows: int = 0
    #: Rows of the trace that could not be read.
    bad_rows: int = 0
    #: The first of them, by line.
    bad_named: list[str] = []
    #: Requests of the trace that are too long for the model and were not sent.
    skipped: int = 0


class Point(msgspec.Struct, frozen=True, array_like=True):
    """One request in a plot."""

    #: Intended seconds since the start of the load.
    due: float
    prompt: int
    ttft_ms: float | None
    e2e_ms: float | None
    tpot_ms: float | None
    failed: bool


class Result(msgspec.Struct, frozen=True, kw_only=True):
    """One load and where its figures come from."""

    format: str
    provenance: Provenance
    workload: Workload
    #: Why the load was stopped early; empty if it was not.
    partial: str
    all: Figures
    #: The same figures by kind of request, without ITL; empty with a single kind.
    by_kind: dict[str, Figures]
    #: Phases of sampled requests, by the router's timeline.
    phases: dict[str, Spread]
    tokens_by_second: list[int]
    open_by_second: list[int]
    points: list[Point]


def result(
    load_run: LoadRun, workload: Workload, provenance: Provenance, phases: dict[str, Spread]
) -> Result:
    exact = workload.api == "completions"
    kinds = sorted({sample.kind for sample in load_run.samples})
    by_kind = {
        kind: figures(
            [sample for sample in load_run.samples if sample.kind == kind],
            type(load_run.gaps)(),
            workload.slo,
            exact_prompts=exact,
        )
        for kind in kinds
    }
    return Result(
        format=FORMAT,
        provenance=provenance,
        workload=workload,
        partial=load_run.stopped,
        all=figures(load_run.samples, load_run.gaps, workload.slo, exact_prompts=exact),
        by_kind=by_kind if len(kinds) > 1 else {},
        phases=phases,
        tokens_by_second=list(load_run.tokens_by_second),
        open_by_second=open_by_second(load_run.samples, load_run.now),
        points=[_point(sample) for sample in thinned(load_run.samples)],
    )


def open_by_second(samples: Sequence[Sample], end: float) -> list[int]:
    """Requests sent and not ended, at the end of each second."""
    changes = [0] * (int(end) + 2)
    for sample in samples:
        if sample.sent is not None:
            changes[int(sample.sent)] += 1
            over = sample.done if sample.done is not None else sample.last
            changes[min(len(changes) - 1, int(over if over is not None else sample.sent))] -= 1
    level, levels = 0, []
    for change in changes[:-1]:
        level += change
        levels.append(level)
    return levels


def thinned(samples: Sequence[Sample]) -> Sequence[Sample]:
    step = -(-len(samples) // POINTS_MAX)
    return samples[::step] if step else samples


def _point(sample: Sample) -> Point:
    return Point(
        due=round(sample.due, 3),
        prompt=sample.prompt,
        ttft_ms=_rounded(sample.ttft_ms),
        e2e_ms=_rounded(sample.e2e_ms),
        tpot_ms=_rounded(sample.tpot_ms),
        failed=bool(sample.error),
    )


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 2)
