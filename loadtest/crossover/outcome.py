"""Ratios by shape and concurrency, and a sentence for each shape."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from statistics import fmean
from typing import Literal

import msgspec

from loadtest.bench.figures import Figures
from loadtest.crossover.measure import DISAGGREGATED, REPLICATED, Cell, RequestLengths
from loadtest.crossover.ratio import Ratio, ratio
from loadtest.crossover.recommendation import sentence
from loadtest.provenance import Provenance

Metric = Literal["goodput", "tokens", "ttft", "itl"]
METRICS: dict[Metric, str] = {
    "goodput": "good answers per second",
    "tokens": "output tokens per second",
    "ttft": "TTFT p90, lower is better",
    "itl": "ITL p99, lower is better",
}


class Crossover(msgspec.Struct, frozen=True, kw_only=True):
    """The whole comparison."""

    provenance: Provenance
    command: str
    workers: str
    engine: str
    metric: Metric
    slo: str
    cells: list[Cell]
    #: By name of the shape and metric: (concurrency, ratio of disaggregated to replicated), above 1
    #: if disaggregated is better.
    ratios: dict[str, dict[Metric, list[tuple[int, Ratio]]]]
    #: The recommendation by name of the shape, for the chosen metric.
    sentences: dict[str, str]
    #: Why the runs ended early; empty if they did not.
    failed: str
    #: How much was run; empty if everything was.
    partial: str = ""


def partial(runs: int, planned: int) -> str:
    return f"{runs} of {planned} runs" if runs < planned else ""


def value(of: Figures, metric: Metric) -> float:
    """More is better."""
    if metric == "goodput":
        return of.goodput_rps
    if metric == "tokens":
        return of.output_tokens_per_s
    low = of.ttft_ms.p90 if metric == "ttft" else of.itl_ms.p99
    return 1 / low if low else 0.0


def ratios(cells: Sequence[Cell], shape: RequestLengths, metric: Metric) -> list[tuple[int, Ratio]]:
    """Of the repeats that both fleets finished."""
    known: dict[tuple[int, int], dict[str, float]] = {}
    for cell in cells:
        if cell.shape == shape:
            pair = known.setdefault((cell.concurrency, cell.repeat), {})
            pair[cell.fleet] = value(cell.figures, metric)
    both = {key: pair for key, pair in known.items() if {REPLICATED, DISAGGREGATED} <= pair.keys()}
    return [
        (
            concurrency,
            ratio(
                [pair[DISAGGREGATED] for key, pair in both.items() if key[0] == concurrency],
                [pair[REPLICATED] for key, pair in both.items() if key[0] == concurrency],
            ),
        )
        for concurrency in sorted({key[0] for key in both})
    ]


def all_ratios(cells: Sequence[Cell]) -> dict[str, dict[Metric, list[tuple[int, Ratio]]]]:
    shapes = dict.fromkeys(cell.shape for cell in cells)
    return {s.name: {metric: ratios(cells, s, metric) for metric in METRICS} for s in shapes}


def sentences(cells: Sequence[Cell], metric: Metric) -> dict[str, str]:
    shapes = dict.fromkeys(cell.shape for cell in cells)
    ratios_of = {shape.name: ratios(cells, shape, metric) for shape in shapes}
    return {name: sentence(dict(rows)) for name, rows in ratios_of.items() if rows}


def failure(cells: Sequence[Cell]) -> str:
    """Why the runs ended early, empty if they did not."""
    if not cells or not cells[-1].figures.failed:
        return ""
    last = cells[-1]
    why = "; ".join(last.figures.details)
    return f"{last.fleet}, {last.shape.name}, {last.concurrency} at once: {why}"


def lines(of: Crossover) -> Iterator[str]:
    """For a terminal."""
    if of.partial:
        yield f"PARTIAL: {of.partial}"
    for shape in dict.fromkeys(cell.shape for cell in of.cells):
        yield f"{shape.name}; {of.workers}, {of.engine}; SLO {of.slo}"
        fleets = list(dict.fromkeys(cell.fleet for cell in of.cells))
        yield f"{'at once':<9}" + "".join(
            f"{fleet + ' tok/s, TTFT p90, ITL p99':>40}" for fleet in fleets
        )
        rows = of.ratios[shape.name][of.metric]
        for concurrency, measured in rows:
            cells = "".join(_cell(of.cells, fleet, shape, concurrency) for fleet in fleets)
            interval = f"[{measured.low:.2f}, {measured.high:.2f}]"
            yield f"{concurrency:<9}{cells}   {measured.value:.2f} {interval}"
        yield f"ratio: disaggregated to replicated, {METRICS[of.metric]}, 95 % confidence"
        yield of.sentences.get(shape.name, "")
    if of.failed:
        yield f"STOPPED: {of.failed}"


def _cell(cells: Sequence[Cell], fleet: str, shape: RequestLengths, concurrency: int) -> str:
    known = [
        c.figures for c in cells if (c.fleet, c.shape, c.concurrency) == (fleet, shape, concurrency)
    ]
    if not known:
        return f"{'-':>40}"
    tokens, ttft, itl = (
        fmean(f.output_tokens_per_s for f in known),
        fmean(f.ttft_ms.p90 for f in known),
        fmean(f.itl_ms.p99 for f in known),
    )
    return f"{tokens:>20.0f}{ttft:>10.0f}{itl:>10.1f}"
