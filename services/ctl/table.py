"""Aligned plain text for people, without colours."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec

Cell = str | int | float | None
#: How a row gives a cell: by its key in JSON, or by a function of the row.
Column = str | Callable[[Any], Cell]


def rows(columns: Mapping[str, Column], empty: str, kind: Any = dict) -> Callable[[Any], str]:
    """Renders a list of rows as the columns of these titles; `empty` is the text for no rows.
    `kind`: the type of the rows that the columns' functions take."""

    def render(result: Any) -> str:
        cells = [
            [column(row) if callable(column) else cell(column, raw) for column in columns.values()]
            for raw, row in zip(result, msgspec.convert(result, list[kind]), strict=True)
        ]
        return table(tuple(columns), cells) if result else empty

    return render


def every_column(result: Any) -> str:
    """Renders a list of rows by their keys, for a verb that declares no columns. Raises TypeError
    for any other result."""
    if not isinstance(result, list) or not all(isinstance(row, dict) for row in result):
        raise TypeError("not a list of rows")
    keys = dict.fromkeys(key for row in result for key in row)
    titles = [key.removesuffix("_ms").replace("_", " ").upper() for key in keys]
    return table(titles, [[cell(key, row) for key in keys] for row in result]) if keys else "none"


def cell(key: str, row: Mapping[str, Any]) -> Cell:
    """A value of a row in the unit in which its key ends, for example `since_s` or `bytes`."""
    value = row[key]
    if isinstance(value, list | dict):
        return ", ".join(map(str, value)) if isinstance(value, list) else json.dumps(value)
    if not isinstance(value, int | float) or isinstance(value, bool):
        return value
    if key.endswith("bytes_per_s"):
        return f"{size(value)}/s"
    if key.endswith(("_ms", "_s")) and not key.endswith("_per_s"):
        return duration(value * 1000 if key.endswith("_s") else value)
    return size(value) if key.endswith("bytes") else value


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


def _text(cell: Cell) -> str:
    return "-" if cell is None or cell == "" else str(cell)
