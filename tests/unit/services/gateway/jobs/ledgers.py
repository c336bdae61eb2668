"""A ledger in memory, with a batch or two."""

from __future__ import annotations

import sqlite3
from typing import Any

from services.gateway.jobs import batches, files, ledger, lines
from services.gateway.jobs.lines import Held, Line, Result

HOUR = 3_600_000


def memory() -> sqlite3.Connection:
    db = sqlite3.connect(":memory:", isolation_level=None)
    db.row_factory = sqlite3.Row
    ledger.make_tables(db)
    return db


def uploaded(db: sqlite3.Connection, owner: str = "a", size: int = 10) -> str:
    file_id = files.new_id()
    files.begin(db, file_id, owner, "in.jsonl", 0)
    files.grow(db, file_id, owner, size, 1 << 30, 0)
    files.complete(db, file_id, files.BATCH, 10 * HOUR)
    return file_id


def batch_of(
    db: sqlite3.Connection, count: int, owner: str = "a", now_ms: int = 0, **fields: Any
) -> str:
    """Its lines wait to be run; odd ones share a prefix, and so do even ones."""
    batch_id = created(db, owner, now_ms, **fields)
    taken = batches.take(db, "planner", now_ms, now_ms + 1000)
    assert taken is not None
    lines.insert(
        db,
        batch_id,
        [Line(n, b"odd" if n % 2 else b"even", n * 10, 9, f"id-{n}") for n in range(1, count + 1)],
    )
    batches.planned(db, taken, now_ms)
    return batch_id


def created(
    db: sqlite3.Connection, owner: str = "a", now_ms: int = 0, most: int = 64, **fields: Any
) -> str:
    about: dict[str, Any] = {
        "owner": owner,
        "endpoint": "/v1/completions",
        "input": uploaded(db, owner),
        "completion_window": "1h",
        "metadata": "{}",
        "created_ms": now_ms,
        "expires_ms": now_ms + HOUR,
        "output_keep_ms": 0,
    }
    return str(batches.create(db, about | fields, most)["id"])


def take(
    db: sqlite3.Connection, holder: str = "g0", most: int = 100, now_ms: int = 0, turn: int = 0
) -> list[Held]:
    return lines.take(db, holder, most, turn, now_ms, now_ms + 1000)


def done(held: Held, *, failed: bool = False) -> Result:
    return Result(held, b"{}\n", failed)


def row(db: sqlite3.Connection, batch_id: str) -> sqlite3.Row:
    found: sqlite3.Row = db.execute("SELECT * FROM batches WHERE id = ?", (batch_id,)).fetchone()
    return found
