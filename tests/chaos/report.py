"""The table that a chaos run prints."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Row:
    """`good` None: not run here, `figure` says why."""

    test: str
    figure: str
    target: str
    good: bool | None


def table(rows: list[Row]) -> str:
    verdicts = {True: "good", False: "FAILED", None: "skipped"}
    cells = [(row.test, row.figure, row.target, verdicts[row.good]) for row in rows]
    cells.insert(0, ("test", "figure", "target", "verdict"))
    widths = [max(len(row[at]) for row in cells) for at in range(4)]
    lines = [
        "  ".join(text.ljust(width) for text, width in zip(row, widths, strict=True)).rstrip()
        for row in cells
    ]
    return "\n".join(lines)
