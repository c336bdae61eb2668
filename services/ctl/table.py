"""Aligned plain text, for people; no colours, no dependencies."""

from __future__ import annotations

from collections.abc import Sequence

Cell = str | int | float | None


def table(head: Sequence[str], rows: Sequence[Sequence[Cell]]) -> str:
    """Numbers to the right, text to the left."""
    texts = [[_text(cell) for cell in row] for row in rows]
    columns = range(len(head))
    widths = [max(len(head[i]), *(len(row[i]) for row in texts), 0) for i in columns]
    right = [bool(rows) and all(isinstance(row[i], int | float) for row in rows) for i in columns]
    lines = [
        "  ".join(
            cell.rjust(widths[i]) if right[i] else cell.ljust(widths[i])
            for i, cell in enumerate(line)
        ).rstrip()
        for line in [list(head), *texts]
    ]
    return "\n".join(lines)


def pairs(rows: Sequence[tuple[str, Cell]]) -> str:
    """A name and its value on each line."""
    width = max((len(name) for name, _ in rows), default=0)
    return "\n".join(f"{name.ljust(width)}  {_text(value)}".rstrip() for name, value in rows)


def size(count: float) -> str:
    """Bytes in binary units."""
    for unit in ("B", "KiB", "MiB"):
        if count < 1024:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1024
    return f"{count:.1f} GiB"


def span(milliseconds: float) -> str:
    """A duration as a person would say it."""
    if milliseconds < 1000:
        return f"{milliseconds:.0f} ms"
    seconds = milliseconds / 1000
    if seconds < 120:
        return f"{seconds:.1f} s"
    minutes = seconds / 60
    return f"{minutes:.0f} min" if minutes < 120 else f"{minutes / 60:.1f} h"


def _text(cell: Cell) -> str:
    if cell is None:
        return "-"
    return str(cell) if cell != "" else "-"
