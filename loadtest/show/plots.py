"""Plots of a load: latency over time, its distribution, throughput."""

from __future__ import annotations

import io
import math
import textwrap
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from common.errors import ConfigError
from loadtest.bench.result import Point, Result

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

BLUE, ORANGE, GREEN, RED, GREY = "#2563a8", "#d97706", "#2f8f4e", "#c0392b", "#8a8f98"
DPI = 100
HEAD_CHARS = 130
MISSING = "plots need matplotlib, which is not installed: pip install 'baton-serve[report]'"


def figure(width: float, height: float) -> Figure:
    """A figure that no window belongs to. Raises ConfigError where matplotlib is not installed."""
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure as Made
    except ImportError as error:
        raise ConfigError("plots", MISSING) from error
    made = Made(figsize=(width, height), dpi=DPI, layout="constrained")
    FigureCanvasAgg(made)
    return made


def png(made: Figure) -> bytes:
    out = io.BytesIO()
    made.savefig(out, format="png", metadata={"Software": None})
    return out.getvalue()


def load(result: Result) -> bytes:
    """Four plots of one load, PNG."""
    made = figure(10.5, 6.6)
    axes = made.subplots(2, 2)
    _over_time(axes[0][0], result)
    _distribution(axes[0][1], result)
    _throughput(axes[1][0], result)
    _by_prompt(axes[1][1], result)
    work = result.workload
    partial = " (stopped early)" if result.partial else ""
    headed(made, f"{work.source}, {work.arrivals}: {work.model}{partial}")
    return png(made)


def headed(made: Figure, text: str) -> None:
    """The sentence above a figure, on as many lines as it needs."""
    made.suptitle("\n".join(textwrap.wrap(text, HEAD_CHARS)), fontsize=10)


def quiet(axes: Axes, title: str, x: str, y: str) -> None:
    """Sets the common style: no box, a light grid, small labels."""
    axes.set_title(title, fontsize=10, loc="left")
    axes.set_xlabel(x, fontsize=8)
    axes.set_ylabel(y, fontsize=8)
    axes.tick_params(which="both", labelsize=8)
    axes.grid(visible=True, alpha=0.25)
    for axis in (axes.xaxis, axes.yaxis):
        if axis.get_scale() == "log":
            axis.set_major_formatter("{x:g}")
            axis.set_minor_formatter(_sparse)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)


def _over_time(axes: Axes, result: Result) -> None:
    ok = [p for p in result.points if not p.failed and p.ttft_ms is not None]
    failed = [p for p in result.points if p.failed]
    axes.plot([p.due for p in ok], [_some(p.ttft_ms) for p in ok], ".", color=BLUE, ms=3)
    if failed:
        axes.plot([p.due for p in failed], [1.0] * len(failed), "x", color=RED, label="failed")
        axes.legend(fontsize=8, frameon=False)
    _log(axes)
    if result.workload.slo.ttft_ms:
        axes.axhline(result.workload.slo.ttft_ms, color=RED, lw=1, ls="--")
    quiet(axes, "TTFT, from the intended time", "seconds", "ms")


def _distribution(axes: Axes, result: Result) -> None:
    kinds: tuple[tuple[str, Callable[[Point], float | None], str], ...] = (
        ("TTFT", lambda p: p.ttft_ms, BLUE),
        ("E2E", lambda p: p.e2e_ms, GREEN),
        ("TPOT", lambda p: p.tpot_ms, ORANGE),
    )
    for name, of, colour in kinds:
        values = sorted(v for v in map(of, result.points) if v is not None and v > 0)
        if values:
            shares = [(i + 1) / len(values) for i in range(len(values))]
            axes.step(values, shares, where="post", color=colour, label=name, lw=1.5)
    axes.set_xscale("log")
    axes.set_ylim(0, 1.01)
    if axes.lines:
        axes.legend(fontsize=8, frameon=False)
    quiet(axes, "share of requests at most", "ms", "share")


def _throughput(axes: Axes, result: Result) -> None:
    tokens = binned(result.tokens_by_second)
    axes.step([at for at, _ in tokens], [n for _, n in tokens], where="mid", color=ORANGE, lw=1.2)
    quiet(axes, "output tokens/s (line) and requests in flight (grey)", "seconds", "tokens/s")
    beside = axes.twinx()
    beside.fill_between(
        range(len(result.open_by_second)), result.open_by_second, color=GREY, alpha=0.25, lw=0
    )
    beside.tick_params(labelsize=8)
    for side in ("top", "left"):
        beside.spines[side].set_visible(False)


def _by_prompt(axes: Axes, result: Result) -> None:
    ok = [p for p in result.points if not p.failed and p.ttft_ms is not None]
    axes.plot([p.prompt for p in ok], [_some(p.ttft_ms) for p in ok], ".", color=BLUE, ms=3)
    _log(axes)
    if ok:
        axes.set_xscale("log")
    quiet(axes, "TTFT by prompt length", "prompt tokens", "ms")


def binned(values: Sequence[int], most: int = 240) -> list[tuple[float, float]]:
    """(second, mean of the bin) of at most `most` bins."""
    width = max(1, math.ceil(len(values) / most))
    return [
        (start + width / 2, sum(values[start : start + width]) / len(values[start : start + width]))
        for start in range(0, len(values), width)
    ]


def _sparse(value: float, _: object) -> str:
    """Of the ticks between powers of ten, 2 and 5 are named."""
    return f"{value:g}" if f"{value:e}"[0] in "25" else ""


def _log(axes: Axes) -> None:
    if axes.lines:
        axes.set_yscale("log")


def _some(value: float | None) -> float:
    return 0.0 if value is None else value
