"""`baton bench show FILE...`: earlier results in one table and on one page."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from common.errors import ConfigError
from loadtest.comparison.load_summary import Latency, LoadSummary
from loadtest.comparison.reader import TOOLS, read
from loadtest.show import page, plots

OK, USAGE = 0, 2
KINDS = ("TTFT", "TPOT", "E2E")
LATENCIES = ("p50", "p90", "p99", "max", "mean")
COUNTS = ("file", "tool", "ok", "failed", "seconds", "requests/s", "tokens/s out")
CHARS = 28
File = tuple[str, LoadSummary]


def main(argv: list[str]) -> int:
    chosen = _parser().parse_args(argv)
    try:
        files = [(path.stem, read(path)) for path in chosen.file]
    except ConfigError as error:
        print(f"baton bench show: {error.message}", file=sys.stderr)
        return USAGE
    print("\n".join(lines(files)))
    if chosen.html:
        chosen.html.write_text(html(files), encoding="utf-8")
    return OK


def lines(files: Sequence[File]) -> Iterator[str]:
    """For a terminal."""
    for title, head, rows in tables(files):
        yield f"{title:<{CHARS}}" + "".join(f"{cell:>16}" for cell in head[1:])
        for name, *cells in rows:
            yield f"{name[-CHARS:]:<{CHARS}}" + "".join(f"{cell:>16}" for cell in cells)
        yield ""
    for name, summary in files:
        yield f"{name}: {summary.load}; {summary.origin}"


def html(files: Sequence[File]) -> str:
    return page.render(
        title="Loads side by side",
        bad=[],
        lead=[f"{name} ({summary.tool}): {summary.load}." for name, summary in files],
        picture=lambda: picture(files),
        tables=tables(files),
        command="baton bench show",
        origin="; ".join(f"{name}: {summary.origin}" for name, summary in files),
    )


def tables(files: Sequence[File]) -> list[page.Table]:
    counts = [
        (
            *(name, s.tool, str(s.ok), "-" if s.failed is None else str(s.failed)),
            *(f"{value:.1f}" for value in (s.seconds, s.requests_per_s, s.output_tokens_per_s)),
        )
        for name, s in files
    ]
    found: list[page.Table] = [("requests", COUNTS, counts)]
    for kind in KINDS:
        rows = [(name, *(_shown(value) for value in _of(summary, kind))) for name, summary in files]
        found.append((f"{kind}, ms", ("file", *LATENCIES), rows))
    return found


def picture(files: Sequence[File]) -> bytes:
    """PNG: median and p99 of each file, where known."""
    made = plots.figure(10.5, 0.8 + 0.5 * len(files) + 1.2)
    places = range(len(files))
    for axes, kind in zip(made.subplots(1, len(KINDS), sharey=True), KINDS, strict=True):
        known = [_of(summary, kind) for _, summary in files]
        for shift, label, colour, values in (
            (-0.2, "p50", plots.BLUE, [latency.p50 for latency in known]),
            (0.2, "p99", plots.ORANGE, [latency.p99 for latency in known]),
        ):
            widths = [value or 0.0 for value in values]
            axes.barh([p + shift for p in places], widths, height=0.38, color=colour, label=label)
        axes.set_yticks(list(places), [name for name, _ in files])
        plots.quiet(axes, f"{kind}, ms", " ", "")
    made.axes[0].invert_yaxis()
    made.legend(*made.axes[0].get_legend_handles_labels(), fontsize=8, frameon=False)
    return plots.png(made)


def _of(summary: LoadSummary, kind: str) -> Latency:
    return {"TTFT": summary.ttft, "TPOT": summary.tpot, "E2E": summary.e2e}[kind]


def _shown(value: float | None) -> str:
    return "-" if value is None else f"{value:.1f}"


def _parser() -> argparse.ArgumentParser:
    names = "; ".join(tool.name for tool in TOOLS)
    parser = argparse.ArgumentParser(
        prog="baton bench show",
        description="Earlier results side by side.",
        epilog=f"a FILE is one of: {names}",
    )
    parser.add_argument("file", nargs="+", type=Path, metavar="FILE")
    parser.add_argument("--html", type=Path, metavar="FILE", help="the same as a page")
    return parser
