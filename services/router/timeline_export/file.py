"""The timeline as a file: one JSON line for each request, in two files at most, the older of which
is overwritten.

Lines are gathered and written at every pulse; `unix_ms` of a line is the time of its record. If the
disk cannot be written to, one warning is logged and the lost lines are counted.
"""

from __future__ import annotations

from pathlib import Path

import msgspec

from common.process.owned_files import open_own
from common.telemetry.log import Logger
from common.telemetry.timeline import TimelineRecord

WAITING_MAX = 65_536


class TimelineFile:
    """`bytes_max`: bytes of both files together; 0 = nothing is written."""

    def __init__(self, path: Path, bytes_max: int, log: Logger) -> None:
        self._path = path
        self._bytes_max = bytes_max // 2
        self._log = log
        self._lines: list[bytes] = []
        self._failed = False
        #: Lines that could not be written.
        self.lost = 0

    def add(self, record: TimelineRecord, unix_ms: int) -> None:
        if not self._bytes_max:
            return
        if len(self._lines) >= WAITING_MAX:
            self.lost += 1
            return
        fields = msgspec.structs.asdict(record)
        self._lines.append(msgspec.json.encode({"unix_ms": unix_ms, **fields}))

    def flush(self) -> None:
        if not self._lines:
            return
        lines, self._lines = self._lines, []
        try:
            self._rotate()
            with open_own(self._path, "ab") as file:
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
