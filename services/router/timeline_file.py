"""The timeline as a file: one JSON line per request, two files at most, the older one overwritten.

Lines are gathered and written at every pulse, a line's `unix_ms` being that of its record. A disk
that cannot be written to is said once; what is lost is counted, and nothing else happens.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec

from common.log import Logger

WAITING_MAX = 65_536


class TimelineFile:
    """`bytes_max`: of both files together; 0 = nothing is written."""

    def __init__(self, path: Path, bytes_max: int, log: Logger) -> None:
        self._path = path
        self._bytes_max = bytes_max // 2
        self._log = log
        self._lines: list[bytes] = []
        self._failed = False
        self.lost = 0

    def add(self, record: dict[str, Any], unix_ms: int) -> None:
        if not self._bytes_max:
            return
        if len(self._lines) >= WAITING_MAX:
            self.lost += 1
            return
        self._lines.append(msgspec.json.encode({"unix_ms": unix_ms, **record}))

    def flush(self) -> None:
        if not self._lines:
            return
        lines, self._lines = self._lines, []
        try:
            self._rotate()
            with self._path.open("ab") as file:
                file.write(b"\n".join([*lines, b""]))
            self._failed = False
        except OSError as error:
            self.lost += len(lines)
            if not self._failed:
                sentence = f"the timeline cannot be written to {self._path}: {error.strerror}"
                self._log.warning("timeline.unwritable", sentence=sentence)
            self._failed = True

    def _rotate(self) -> None:
        if self._path.exists() and self._path.stat().st_size >= self._bytes_max:
            self._path.replace(self._path.with_suffix(".jsonl.1"))
