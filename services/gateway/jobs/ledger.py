"""The ledger of all jobs: one SQLite database that the gateway processes of a host share.

Theory of operation: the database is in write-ahead mode, in which readers never wait for the one
writer. Each process has one connection, on a thread of its own, so that the event loop never waits
for a disk. All that one event changes is one transaction: a process that is killed leaves it whole
or not at all. `PRAGMA synchronous = NORMAL` may lose the last transactions when the host loses
power, never the order of them; lines whose results are lost then run again, and the output has each
line once all the same, because it is written from the ledger.

Instants are milliseconds of the wall clock, which all processes of a host share. A clock that jumps
makes leases end early or late: a line may run again, and the fencing number of the one before keeps
its result out.
"""

from __future__ import annotations

import asyncio
import os
import sqlite3
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TypeVar

from common.errors import BatonError, Code, ConfigError
from common.process.owned_files import open_private, own_folder

T = TypeVar("T")

LEDGER = "ledger.sqlite"
#: How long a transaction waits for that of another process.
BUSY_SECONDS = 10.0
_FILES_AND_BATCHES = """
CREATE TABLE files (
    id TEXT PRIMARY KEY, owner TEXT NOT NULL, purpose TEXT NOT NULL, name TEXT NOT NULL,
    bytes INTEGER NOT NULL, created_ms INTEGER NOT NULL, expires_ms INTEGER NOT NULL,
    touched_ms INTEGER NOT NULL, whole INTEGER NOT NULL
);
CREATE INDEX files_of_owner ON files (owner, created_ms);
CREATE TABLE batches (
    id TEXT PRIMARY KEY, owner TEXT NOT NULL, endpoint TEXT NOT NULL, input TEXT NOT NULL,
    completion_window TEXT NOT NULL, metadata TEXT NOT NULL, status TEXT NOT NULL,
    ends_as TEXT NOT NULL DEFAULT 'completed', errors TEXT NOT NULL DEFAULT '',
    created_ms INTEGER NOT NULL, expires_ms INTEGER NOT NULL, begun_ms INTEGER,
    finalizing_ms INTEGER, cancelling_ms INTEGER, ended_ms INTEGER,
    output_keep_ms INTEGER NOT NULL,
    output TEXT, error_output TEXT,
    total INTEGER NOT NULL DEFAULT 0, completed INTEGER NOT NULL DEFAULT 0,
    failed INTEGER NOT NULL DEFAULT 0, prompt_tokens INTEGER NOT NULL DEFAULT 0,
    cached_tokens INTEGER NOT NULL DEFAULT 0, completion_tokens INTEGER NOT NULL DEFAULT 0,
    held_by TEXT NOT NULL DEFAULT '', held_until_ms INTEGER NOT NULL DEFAULT 0,
    fence INTEGER NOT NULL DEFAULT 0, retry_ms INTEGER NOT NULL DEFAULT 0
);
CREATE INDEX batches_of_owner ON batches (owner, created_ms);
CREATE INDEX batches_at_work ON batches (status)
    WHERE status IN ('validating', 'in_progress', 'finalizing', 'cancelling');
CREATE VIEW open_batches AS SELECT * FROM batches
    WHERE status IN ('validating', 'in_progress', 'finalizing', 'cancelling');
CREATE TABLE lines (
    batch TEXT NOT NULL, number INTEGER NOT NULL, prefix BLOB NOT NULL,
    at INTEGER NOT NULL, length INTEGER NOT NULL, custom_id TEXT,
    state INTEGER NOT NULL, failures INTEGER NOT NULL DEFAULT 0, losses INTEGER NOT NULL DEFAULT 0,
    fence INTEGER NOT NULL DEFAULT 0, held_by TEXT NOT NULL DEFAULT '',
    held_until_ms INTEGER NOT NULL DEFAULT 0,
    PRIMARY KEY (batch, number)
) WITHOUT ROWID;
CREATE INDEX lines_that_wait ON lines (batch, prefix, number) WHERE state = 0;
CREATE INDEX lines_that_run ON lines (held_by, held_until_ms) WHERE state = 1;
CREATE TABLE results (
    batch TEXT NOT NULL, number INTEGER NOT NULL, failed INTEGER NOT NULL, entry BLOB NOT NULL,
    PRIMARY KEY (batch, number)
);
"""
_RESPONSES = """
CREATE TABLE responses (
    id TEXT PRIMARY KEY, owner TEXT NOT NULL, status TEXT NOT NULL, background INTEGER NOT NULL,
    bytes INTEGER NOT NULL, created_ms INTEGER NOT NULL, expires_ms INTEGER NOT NULL,
    failures INTEGER NOT NULL DEFAULT 0, losses INTEGER NOT NULL DEFAULT 0,
    fence INTEGER NOT NULL DEFAULT 0, held_by TEXT NOT NULL DEFAULT '',
    held_until_ms INTEGER NOT NULL DEFAULT 0, retry_ms INTEGER NOT NULL DEFAULT 0,
    shown BLOB NOT NULL, items BLOB NOT NULL, request BLOB NOT NULL
);
CREATE INDEX responses_of_owner ON responses (owner, created_ms, id, bytes);
CREATE INDEX responses_by_expiry ON responses (expires_ms);
CREATE INDEX responses_at_work ON responses (owner, created_ms)
    WHERE status IN ('queued', 'in_progress');
CREATE VIEW open_responses AS SELECT * FROM responses
    WHERE status IN ('queued', 'in_progress');
"""
_RESPONSE_EVENTS = """
ALTER TABLE responses ADD COLUMN stream_from INTEGER;
CREATE TABLE response_events (
    response TEXT NOT NULL, number INTEGER NOT NULL, event BLOB NOT NULL,
    PRIMARY KEY (response, number)
) WITHOUT ROWID;
CREATE TRIGGER events_of_a_deleted_response AFTER DELETE ON responses
    BEGIN DELETE FROM response_events WHERE response = old.id; END;
"""
SCHEMAS = (_FILES_AND_BATCHES, _RESPONSES, _RESPONSE_EVENTS)
"""What each version adds to the one before. "Append when": a table changes. Each statement ends at
the end of a line, and no line within one ends with a semicolon."""
#: A ledger of an earlier one is brought up to it, one of a later one is refused.
VERSION = len(SCHEMAS)


class Ledger:
    """`folder`: where the database and the files are. Raises BatonError(INTERNAL) for what SQLite
    cannot do, such as writing to a full disk."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="jobs")
        self._database: sqlite3.Connection | None = None
        self._closed = False

    async def open(self) -> None:
        """Makes what is missing. Raises ConfigError."""
        await self.aside(self._open)

    async def close(self) -> None:
        """After what was begun."""
        try:
            await self.aside(self._close)
        finally:
            self._closed = True
        self._thread.shutdown(wait=False)

    async def aside(self, work: Callable[[], T]) -> T:
        """Does it on the ledger's thread, outside of any transaction. Raises BatonError(DRAINING)
        once it is closed."""
        if self._closed:
            raise BatonError(Code.DRAINING, "this gateway is stopping; its jobs are closed")
        return await asyncio.get_running_loop().run_in_executor(self._thread, work)

    async def change(self, work: Callable[[sqlite3.Connection], T]) -> T:
        """In one transaction, which nobody else's comes between."""
        return await self.aside(lambda: self._transact("BEGIN IMMEDIATE", work))

    async def read(self, work: Callable[[sqlite3.Connection], T]) -> T:
        """From one state of the ledger; takes no lock."""
        return await self.aside(lambda: self._transact("BEGIN", work))

    def path_of(self, file_id: str) -> Path:
        """Where the content of a file is."""
        return self.folder / file_id

    def _open(self) -> None:
        path = self.folder / LEDGER
        try:
            own_folder(self.folder)
            os.close(open_private(path))  # what SQLite adds beside it gets the same mode
        except OSError as error:
            raise ConfigError("gateway.jobs.path", error.strerror or str(error)) from error
        try:
            database = sqlite3.connect(
                path, timeout=BUSY_SECONDS, isolation_level=None, check_same_thread=False
            )
            database.row_factory = sqlite3.Row
            for pragma in ("journal_mode = WAL", "synchronous = NORMAL", "secure_delete = ON"):
                database.execute(f"PRAGMA {pragma}")
            self._database = database
            known = self._transact("BEGIN IMMEDIATE", make_tables)
        except (sqlite3.Error, BatonError) as error:
            raise ConfigError("gateway.jobs.path", f"{path} cannot be used: {error}") from error
        if known != VERSION:
            sentence = f"{path} is of version {known}, and this is {VERSION}; name another folder"
            raise ConfigError("gateway.jobs.path", sentence)

    def _close(self) -> None:
        if self._database is not None:
            self._database.close()
            self._database = None

    def _transact(self, begin: str, work: Callable[[sqlite3.Connection], T]) -> T:
        database = self._database
        if database is None:
            raise BatonError(Code.DRAINING, "the ledger of jobs is closed")
        try:
            database.execute(begin)
            try:
                result = work(database)
                database.execute("COMMIT")
            except BaseException:
                if database.in_transaction:
                    database.execute("ROLLBACK")
                raise
        except sqlite3.Error as error:
            sentence = f"the ledger of jobs (gateway.jobs.path) cannot be used: {error}"
            raise BatonError(Code.INTERNAL, sentence) from error
        return result


def make_tables(database: sqlite3.Connection) -> int:
    """Makes the tables that an empty ledger, or one of an earlier version, lacks. Returns the
    ledger's version, which is a later one where nothing was done."""
    (known,) = database.execute("PRAGMA user_version").fetchone()
    if known >= VERSION:
        return int(known)
    for schema in SCHEMAS[known:]:
        for statement in schema.split(";\n"):
            database.execute(statement)
    database.execute(f"PRAGMA user_version = {VERSION}")
    return VERSION
