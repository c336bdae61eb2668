"""Streams a trace of either kind, whatever its length; one row is held at a time."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from common.errors import ConfigError
from loadtest.traces import azure, mooncake
from loadtest.traces.rows import BadRowError, Reading, Row

BACK_SECONDS_MAX = 1.0
"""Rows of one recorder may be a little out of order; one that goes back further is broken."""


def read(path: Path, reading: Reading, limit: int = 0) -> Iterator[Row]:
    """`at` counts from the first good row and never falls. At most `limit` rows, 0 = all. A broken
    row is counted in `reading` and passed over. Raises ConfigError for a file that cannot be read
    or has no row that can be used."""
    try:
        with path.open(encoding="utf-8", errors="replace") as lines:
            yield from _rows(enumerate(lines, 1), reading, limit)
    except OSError as error:
        raise ConfigError(str(path), f"cannot be read: {error.strerror}") from error
    if not reading.rows:
        why = f"; {reading.named[0]}" if reading.named else ""
        raise ConfigError(
            str(path), f"has no row of a Mooncake JSONL or Azure CSV trace among them{why}"
        )


def _rows(lines: Iterator[tuple[int, str]], reading: Reading, limit: int) -> Iterator[Row]:
    first: float | None = None
    latest, usual = 0.0, azure.parse
    for number, line in lines:
        if not line.strip() or (number == 1 and azure.is_header(line)):
            continue
        try:
            parse = mooncake.parse if line.lstrip().startswith("{") else usual
            row = parse(line)
            usual = parse
            first = row.at if first is None else first
            since = row.at - first
            if since < latest - BACK_SECONDS_MAX:
                raise BadRowError(f"goes back {latest - since:.1f} s in time")
        except BadRowError as error:
            reading.fault(number, str(error))
            continue
        latest = max(latest, since)
        reading.rows += 1
        yield row._replace(at=latest)
        if reading.rows == limit:
            return
