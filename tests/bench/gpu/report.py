"""What `make gpu` found: as a JSON file, as a table to read, and as Markdown for the README."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

import msgspec


class Row(msgspec.Struct, frozen=True):
    """One figure."""

    part: str
    what: str
    value: float
    unit: str
    ratio: float | None = None
    """To what `against` names; None where that was not measured."""
    against: str = ""


class Check(msgspec.Struct, frozen=True):
    """Whether something is as it must be."""

    what: str
    passed: bool
    detail: str = ""


class Outcome(msgspec.Struct):
    """What one part found."""

    rows: list[Row] = []
    checks: list[Check] = []
    about: dict[str, str] = {}
    """The card, the driver and the versions of the software, by name."""
    failure: str = ""
    """Why the part did not come to its end; empty if it did."""
    seconds: float = 0.0


class Results(msgspec.Struct):
    """What a run found."""

    parts: dict[str, Outcome] = {}

    @property
    def about(self) -> dict[str, str]:
        return next((part.about for part in self.parts.values() if part.about), {})

    @property
    def rows(self) -> list[Row]:
        return [row for part in self.parts.values() for row in part.rows]

    @property
    def faults(self) -> list[str]:
        """A sentence for each check that failed, and for each part that did not end well."""
        failed = [
            f"{check.what}: {check.detail or 'failed'}"
            for part in self.parts.values()
            for check in part.checks
            if not check.passed
        ]
        broken = [f"{name}: {part.failure}" for name, part in self.parts.items() if part.failure]
        return failed + broken

    def write(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(msgspec.json.format(msgspec.json.encode(self), indent=1) + b"\n")


def read(path: Path) -> Results:
    """Raises OSError, and msgspec.MsgspecError for a file of another kind."""
    return msgspec.json.decode(path.read_bytes(), type=Results)


def value_of(rows: Iterable[Row], part: str, what: str) -> float | None:
    """The value of this figure, if it was measured."""
    return next((row.value for row in rows if (row.part, row.what) == (part, what)), None)


def compared(
    part: str, what: str, value: float, unit: str, *, against: str, base: float | None
) -> Row:
    """A figure and its ratio to `base`, of the same unit; None where that was not measured."""
    ratio = value / base if base else None
    return Row(part, what, value, unit, ratio, against if ratio is not None else "")


def text_table(results: Results) -> str:
    """Aligned, one figure a line, with what was checked below."""
    head = ("part", "what", "measured", "", "ratio", "against")
    lines = [head, *(_cells(row) for row in results.rows)]
    widths = [max(len(line[at]) for line in lines) for at in range(len(head))]
    right = {2, 4}
    printed = [
        "  ".join(
            cell.rjust(width) if at in right else cell.ljust(width)
            for at, (cell, width) in enumerate(zip(line, widths, strict=True))
        ).rstrip()
        for line in lines
    ]
    return "\n".join([*printed, "", *_verdict(results)])


def markdown(results: Results) -> str:
    """The table for the README, with the card and the software above it."""
    about = ", ".join(f"{name} {value}" for name, value in results.about.items())
    head = ["| part | what | measured | ratio | against |", "|---|---|---:|---:|---|"]
    body = []
    for row in results.rows:
        part, what, value, unit, ratio, against = _cells(row)
        body.append(f"| {part} | {what} | {f'{value} {unit}'.strip()} | {ratio} | {against} |")
    return "\n".join([about, "", *head, *body, "", *_verdict(results)])


def _cells(row: Row) -> tuple[str, str, str, str, str, str]:
    ratio = "" if row.ratio is None else f"{row.ratio:.2f}"
    return row.part, row.what, number(row.value), row.unit, ratio, row.against


def number(value: float) -> str:
    """Three digits, or all of those before the point."""
    if abs(value) >= 100:
        return f"{value:.0f}"
    return f"{value:.1f}" if abs(value) >= 10 else f"{value:.2f}"


def _verdict(results: Results) -> Sequence[str]:
    checks = [check for part in results.parts.values() for check in part.checks]
    passed = sum(check.passed for check in checks)
    lines = [f"{passed} of {len(checks)} checks passed"] if checks else ["nothing was checked"]
    return [*lines, *(f"FAILED: {fault}" for fault in results.faults)]
