"""Azure's LLM inference trace, CSV: a wall-clock TIMESTAMP, ContextTokens, GeneratedTokens."""

from __future__ import annotations

import csv
from datetime import UTC, datetime

from loadtest.traces.rows import BadRowError, Row, checked

COLUMNS = ("TIMESTAMP", "ContextTokens", "GeneratedTokens")
MICROSECONDS_AT = 26
"""Digits after the sixth decimal are below what a datetime holds."""


def is_header(line: str) -> bool:
    return line.strip().split(",")[:1] == [COLUMNS[0]]


def parse(line: str) -> Row:
    """`at` is seconds of the epoch; the timestamp is taken as UTC where it names no zone. Raises
    BadRowError."""
    cells = next(csv.reader([line]))
    if len(cells) != len(COLUMNS):
        raise BadRowError(f"{len(cells)} columns, {len(COLUMNS)} are due: {', '.join(COLUMNS)}")
    try:
        at = _instant(cells[0])
    except ValueError as error:
        raise BadRowError(f"TIMESTAMP {cells[0]!r} is not a date and time") from error
    try:
        prompt, output = int(cells[1]), int(cells[2])
    except ValueError as error:
        raise BadRowError(f"{cells[1]!r}, {cells[2]!r} are not two whole numbers") from error
    return checked(Row(at, prompt, output))


def _instant(text: str) -> float:
    date, dot, rest = text.strip().partition(".")
    zone = rest.lstrip("0123456789")
    digits = rest[: len(rest) - len(zone)]
    instant = datetime.fromisoformat(f"{date}{dot}{digits}"[:MICROSECONDS_AT] + zone)
    return (instant if instant.tzinfo else instant.replace(tzinfo=UTC)).timestamp()
