"""The crossover as a picture: what each fleet does, and the ratio with its confidence."""

from __future__ import annotations

from statistics import fmean
from typing import TYPE_CHECKING

from loadtest.crossover.measure import RequestLengths
from loadtest.crossover.outcome import METRICS, Crossover, value
from loadtest.show.plots import BLUE, GREEN, GREY, ORANGE, figure, headed, png, quiet

if TYPE_CHECKING:
    from matplotlib.axes import Axes

COLOURS = {"single": GREY, "replicated": BLUE, "disaggregated": ORANGE}


def crossover(of: Crossover) -> bytes:
    """PNG: a row for each shape."""
    shapes = list(dict.fromkeys(cell.shape for cell in of.cells))
    made = figure(10.5, 3.6 * len(shapes) + 0.4)
    grid = made.subplots(len(shapes), 2, squeeze=False)
    for row, shape in zip(grid, shapes, strict=True):
        _absolute(row[0], of, shape)
        _ratio(row[1], of, shape)
    sentences = " ".join(of.sentences.values()) if len(shapes) == 1 else ""
    partial = f"PARTIAL, {of.partial}: " if of.partial else ""
    headed(made, f"{partial}{of.workers}, {of.engine}; SLO {of.slo}. {sentences}".strip())
    return png(made)


def _absolute(axes: Axes, of: Crossover, shape: RequestLengths) -> None:
    for fleet in dict.fromkeys(cell.fleet for cell in of.cells):
        known: dict[int, list[float]] = {}
        for cell in of.cells:
            if (cell.fleet, cell.shape) == (fleet, shape):
                known.setdefault(cell.concurrency, []).append(value(cell.figures, of.metric))
        means = [fmean(values) for values in known.values()]
        axes.plot(list(known), means, "o-", ms=4, label=fleet, color=COLOURS.get(fleet, GREEN))
    axes.set_xscale("log", base=2)
    axes.legend(fontsize=8, frameon=False)
    shown = METRICS[of.metric] if of.metric in ("goodput", "tokens") else f"1 / {of.metric} ms"
    quiet(axes, f"{shown}: {shape.name}", "requests at once", "")


def _ratio(axes: Axes, of: Crossover, shape: RequestLengths) -> None:
    rows = of.ratios[shape.name][of.metric]
    at = [concurrency for concurrency, _ in rows]
    middle = [ratio.value for _, ratio in rows]
    low = [ratio.value - max(ratio.low, 0.0) for _, ratio in rows]
    high = [min(ratio.high, 10 * ratio.value) - ratio.value for _, ratio in rows]
    axes.axhline(1.0, color=GREY, lw=1, ls="--")
    axes.errorbar(at, middle, yerr=[low, high], fmt="o-", color=GREEN, ms=4, capsize=3)
    axes.set_xscale("log", base=2)
    quiet(axes, "disaggregated to replicated, 95 % confidence", "requests at once", "ratio")
