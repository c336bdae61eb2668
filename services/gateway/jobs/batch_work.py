"""What happens to a batch before its first line runs and after its last: planned, and written out.

One process holds the batch meanwhile (`batches.take`). Both begin anew after a crash, and end in
one transaction, so that nothing of an interrupted one is seen: lines that were planned are
forgotten, and a file that was half written has a name that no client can ask for. The files of a
folder that are nobody's are deleted after an hour.
"""

from __future__ import annotations

import hashlib
import os
import sqlite3
import time
from collections.abc import Iterator
from contextlib import suppress
from itertools import islice
from pathlib import Path
from typing import BinaryIO

from common.clock import Clock
from common.config import JobsConfig
from common.errors import BatonError
from common.process.owned_files import open_private
from common.telemetry.log import Logger
from services.gateway.jobs import batches, files, lines
from services.gateway.jobs.batches import LostHoldError, Status
from services.gateway.jobs.entries import not_run
from services.gateway.jobs.ledger import LEDGER, Ledger
from services.gateway.jobs.lines import Line
from services.gateway.jobs.plan import Planner, split

PIECE_BYTES = 1 << 20
#: Lines that are planned, or written, in one go; the ledger does other work between two.
PLANNED_AT_ONCE, WRITTEN_AT_ONCE = 500, 64
#: Until a batch whose files could not be written is tried again.
RETRY_MS = 10_000
HOUR_MS = 3_600_000
WHY_UNRUN = {
    "expired": ("batch_expired", "the completion window of the batch ended before this line ran"),
    "cancelled": ("batch_cancelled", "the batch was cancelled before this line ran"),
}


class BatchWork:
    """`holder`: the process. `line_bytes_max`: of a line of an input file."""

    def __init__(
        self,
        ledger: Ledger,
        config: JobsConfig,
        line_bytes_max: int,
        *,
        holder: str,
        clock: Clock,
        log: Logger,
    ) -> None:
        self._ledger = ledger
        self._config = config
        self._line_bytes_max = line_bytes_max
        self._holder = holder
        self._clock = clock
        self._log = log

    async def once(self) -> bool:
        """Does what one batch needs. Returns whether there was one. Raises BatonError."""
        now = self._clock.unix_ms()
        until = self._until()
        taken = await self._ledger.change(lambda db: batches.take(db, self._holder, now, until))
        if taken is None:
            return False
        try:
            if taken["status"] == Status.VALIDATING:
                await self._plan(taken)
            else:
                await self._write(taken)
        except LostHoldError:
            sentence = "another gateway goes on with this batch, or it was cancelled"
            self._log.info("batch.left", batch=taken["id"], sentence=sentence)
        except (OSError, BatonError) as error:
            self._log.warning("batch.delayed", batch=taken["id"], sentence=str(error))
            later = self._clock.unix_ms() + RETRY_MS
            await self._ledger.change(lambda db: batches.let_go(db, taken, later))
        return True

    def _until(self) -> int:
        return self._clock.unix_ms() + int(self._config.lease_ms)

    # ------------------------------------------------------------ before

    async def _plan(self, taken: sqlite3.Row) -> None:
        batch, most = taken["id"], self._config.lines_max
        await self._ledger.change(lambda db: lines.forget(db, batch))
        if not await self._ledger.aside(self._ledger.path_of(taken["input"]).exists):
            await self._refuse(taken, "file_not_found", "the input file is gone")
            return
        planned, count = self._planned(taken), 0
        while chunk := await self._ledger.aside(lambda: list(islice(planned, PLANNED_AT_ONCE))):
            count += len(chunk)
            if count > most:
                sentence = f"the file has more than {most} lines (gateway.jobs.lines_max)"
                await self._refuse(taken, "too_many_lines", sentence)
                return
            await self._insert(taken, chunk)
        if not count:
            await self._refuse(taken, "empty_file", "the file has no line")
            return
        now = self._clock.unix_ms()
        await self._ledger.change(lambda db: batches.planned(db, taken, now))
        self._log.info("batch.planned", batch=batch, sentence=f"{count} lines are to be run")

    async def _insert(self, taken: sqlite3.Row, chunk: list[Line]) -> None:
        until = self._until()

        def insert(db: sqlite3.Connection) -> None:
            batches.hold(db, taken, until)
            lines.insert(db, taken["id"], chunk)

        await self._ledger.change(insert)

    def _planned(self, taken: sqlite3.Row) -> Iterator[Line]:
        planner = Planner(taken["id"], taken["endpoint"], self._line_bytes_max)
        pieces = _pieces(self._ledger.path_of(taken["input"]))
        for number, at, text in split(pieces, self._line_bytes_max):
            line = planner.plan(number, at, text)
            if line is not None:
                yield line

    async def _refuse(self, taken: sqlite3.Row, code: str, sentence: str) -> None:
        errors = [{"code": code, "message": sentence, "param": None, "line": None}]
        now = self._clock.unix_ms()
        await self._ledger.change(lambda db: batches.refuse(db, taken, errors, now))
        self._log.info("batch.refused", batch=taken["id"], sentence=sentence)

    # ------------------------------------------------------------ after

    async def _write(self, taken: sqlite3.Row) -> None:
        batch, number, unrun = taken["id"], 0, 0
        outputs = [OutputFile(self._ledger, taken, kind) for kind in ("output", "error")]
        try:
            while taken["begun_ms"] is not None:
                rows = await self._ledger.read(
                    lambda db, after=number: lines.outcomes_after(  # type: ignore[misc]
                        db, batch, after, WRITTEN_AT_ONCE
                    )
                )
                if not rows:
                    break
                number = rows[-1]["number"]
                unrun += sum(row["entry"] is None for row in rows)
                await self._ledger.aside(lambda rows=rows: _append(outputs, taken, rows))  # type: ignore[misc]
                until = self._until()
                await self._ledger.change(
                    lambda db, until=until: batches.hold(db, taken, until)  # type: ignore[misc]
                )
            for output in outputs:
                await self._ledger.aside(output.complete)
            await self._finish(taken, outputs, unrun)
        finally:
            for output in outputs:
                await self._ledger.aside(output.abandon)

    async def _finish(self, taken: sqlite3.Row, outputs: list[OutputFile], unrun: int) -> None:
        now = self._clock.unix_ms()
        expires = now + (taken["output_keep_ms"] or self._config.keep_hours * HOUR_MS)

        def finish(db: sqlite3.Connection) -> None:
            ids = [output.file_id if output.size else None for output in outputs]
            batches.finish(db, taken, (ids[0], ids[1]), unrun, now)
            for output in outputs:
                if output.size:
                    about = (output.file_id, taken["owner"], output.name, output.size)
                    files.add_output(db, *about, (now, expires))

        await self._ledger.change(finish)
        sentence = f"its files are written; {unrun} lines were never answered"
        self._log.info("batch.over", batch=taken["id"], sentence=sentence)

    # ------------------------------------------------------------ what is nobody's

    async def sweep(self) -> None:
        """Deletes what crashes left in the folder."""
        names = await self._ledger.aside(self._old_names)
        strange = await self._ledger.read(lambda db: files.strangers(db, names))
        await self.delete(strange)

    async def delete(self, names: list[str]) -> None:
        """Deletes files of the folder."""

        def unlink() -> None:
            for name in names:
                self._ledger.path_of(name).unlink(missing_ok=True)

        if names:
            await self._ledger.aside(unlink)

    def _old_names(self) -> list[str]:
        found = []
        for entry in os.scandir(self._ledger.folder):
            with suppress(FileNotFoundError):
                age = time.time() - entry.stat(follow_symlinks=False).st_mtime
                if not entry.name.startswith(LEDGER) and age * 1000 > files.STALE_MS:
                    found.append(entry.name)
        return found


class OutputFile:
    """An output or error file while it is written. Its id follows from the batch, so that a second
    writing replaces what a crash left of the first. Used on the ledger's thread."""

    def __init__(self, ledger: Ledger, taken: sqlite3.Row, kind: str) -> None:
        digest = hashlib.blake2b(f"{taken['id']} {kind}".encode(), digest_size=16)
        self.file_id = f"file-{digest.hexdigest()}"
        self.name = f"{taken['id']}_{kind}.jsonl"
        self.size = 0
        self._path = ledger.path_of(self.file_id)
        self._partial = ledger.path_of(f"{self.file_id}.{taken['fence']}")
        self._file: BinaryIO | None = None

    def append(self, entry: bytes) -> None:
        if self._file is None:
            self._file = os.fdopen(open_private(self._partial), "wb")
        self._file.write(entry)
        self.size += len(entry)

    def complete(self) -> None:
        """It is on the disk, under its name, when this returns."""
        if self._file is not None:
            self._file.flush()
            os.fsync(self._file.fileno())
            self._partial.rename(self._path)

    def abandon(self) -> None:
        """Closes it, and deletes it if it is not complete."""
        if self._file is not None:
            with suppress(OSError):
                self._file.close()
            self._partial.unlink(missing_ok=True)
            self._file = None


def _append(outputs: list[OutputFile], taken: sqlite3.Row, rows: list[sqlite3.Row]) -> None:
    output, errors = outputs
    for row in rows:
        entry, failed = row["entry"], row["failed"]
        if entry is None:
            why = WHY_UNRUN[taken["ends_as"]]
            entry, failed = not_run(taken["id"], row["number"], row["custom_id"], *why), True
        (errors if failed else output).append(entry)


def _pieces(path: Path) -> Iterator[bytes]:
    with path.open("rb") as file:
        while piece := file.read(PIECE_BYTES):
            yield piece
