"""Aligned plain text for people, without colours."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

Cell = str | int | float | None
#: How a row gives a cell: by its key, or by a function of the row.
Column = str | Callable[[Any], Cell]


def rows(columns: Mapping[str, Column], empty: str) -> Callable[[Any], str]:
    """Renders a list of rows as the columns of these titles; `empty` is the text for no rows."""

    def render(result: Any) -> str:
        cells = [
            [column(row) if callable(column) else row[column] for column in columns.values()]
            for row in result
        ]
        return table(tuple(columns), cells) if result else empty

    return render


def table(titles: Sequence[str], cells: Sequence[Sequence[Cell]]) -> str:
    """A line of titles, then a line for each row. Columns of numbers are aligned to the right."""
    lines = [titles, *[[_text(cell) for cell in line] for line in cells]]
    padded = []
    for number, column in enumerate(zip(*lines, strict=True)):
        width = max(len(text) for text in column)
        right = bool(cells) and all(isinstance(line[number], int | float) for line in cells)
        padded.append([text.rjust(width) if right else text.ljust(width) for text in column])
    return "\n".join("  ".join(line).rstrip() for line in zip(*padded, strict=True))


def fields(named: Sequence[tuple[str, Cell]]) -> str:
    """A name and its value on each line."""
    width = max((len(name) for name, _ in named), default=0)
    return "\n".join(f"{name.ljust(width)}  {_text(value)}".rstrip() for name, value in named)


def size(count: float) -> str:
    """Bytes in binary units."""
    for unit in ("B", "KiB", "MiB"):
        if count < 1024:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1024
    return f"{count:.1f} GiB"


def duration(milliseconds: float) -> str:
    """Three digits or so, in the unit that suits: ms, s, min or h."""
    if milliseconds < 1000:
        return f"{milliseconds:.0f} ms"
    seconds = milliseconds / 1000
    if seconds < 120:
        return f"{seconds:.1f} s"
    minutes = seconds / 60
    return f"{minutes:.0f} min" if minutes < 120 else f"{minutes / 60:.1f} h"


def duration_of(key: str) -> Column:
    """A column of durations, empty where there is none. The key ends in its unit, `_ms` or `_s`."""
    factor = 1000 if key.endswith("_s") else 1
    return lambda row: None if row[key] is None else duration(row[key] * factor)


def _text(cell: Cell) -> str:
    return "-" if cell is None or cell == "" else str(cell)
