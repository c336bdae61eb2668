"""The table of files. A file belongs to the API key that it came with, and no other key sees it.

Functions take the ledger's connection inside a transaction. `owner`: public id of a key, empty for
anonymous callers. The content of a file lies in the folder under its id. An upload is in the table
from its first byte on (`whole` is 0 until its end), so that uploads at the same time share a quota.
"""

from __future__ import annotations

import re
import secrets
import sqlite3
from typing import Any

from common.errors import BatonError, Code

BATCH, OUTPUT = "batch", "batch_output"
#: What clients may upload.
PURPOSES = (BATCH,)
FILE_ID = re.compile(r"file-[0-9a-f]{32}")
#: An upload of which nothing came for so long is given up.
STALE_MS = 3_600_000
NAME_CHARS_MAX = 512
PAGES = {
    True: "SELECT * FROM files WHERE owner = :owner AND whole = 1"
    " AND (:purpose = '' OR purpose = :purpose) AND (:after = '' OR (created_ms, id) <"
    " (SELECT created_ms, id FROM files WHERE id = :after AND owner = :owner))"
    " ORDER BY created_ms DESC, id DESC LIMIT :limit",
    False: "SELECT * FROM files WHERE owner = :owner AND whole = 1"
    " AND (:purpose = '' OR purpose = :purpose) AND (:after = '' OR (created_ms, id) >"
    " (SELECT created_ms, id FROM files WHERE id = :after AND owner = :owner))"
    " ORDER BY created_ms, id LIMIT :limit",
}
"""By whether the newest come first."""


def new_id() -> str:
    return f"file-{secrets.token_hex(16)}"


def begin(db: sqlite3.Connection, file_id: str, owner: str, name: str, now_ms: int) -> None:
    """An upload."""
    db.execute(
        "INSERT INTO files VALUES (?, ?, ?, ?, 0, ?, 0, ?, 0)",
        (file_id, owner, BATCH, name[:NAME_CHARS_MAX], now_ms, now_ms),
    )


def grow(
    db: sqlite3.Connection, file_id: str, owner: str, more: int, quota_bytes: int, now_ms: int
) -> None:
    """Raises BatonError(BODY_TOO_LARGE) if the owner's files would be larger than they may, and
    NOT_FOUND if the file is gone."""
    if used(db, owner) + more > quota_bytes:
        raise over_quota(quota_bytes)
    changed = db.execute(
        "UPDATE files SET bytes = bytes + ?, touched_ms = ? WHERE id = ? AND whole = 0",
        (more, now_ms, file_id),
    )
    if not changed.rowcount:
        raise unknown(file_id)


def over_quota(quota_bytes: int) -> BatonError:
    sentence = (
        f"the files and stored responses of this key may have {quota_bytes >> 20} MiB together"
        " (gateway.jobs.quota_mib); delete some"
    )
    return BatonError(Code.BODY_TOO_LARGE, sentence, param="file")


def complete(db: sqlite3.Connection, file_id: str, purpose: str, expires_ms: int) -> None:
    """It can be read from now on."""
    db.execute(
        "UPDATE files SET whole = 1, purpose = ?, expires_ms = ? WHERE id = ?",
        (purpose, expires_ms, file_id),
    )


def add_output(
    db: sqlite3.Connection, file_id: str, owner: str, name: str, size: int, times: tuple[int, int]
) -> None:
    """A file that was written here. `times`: when it was, and when it expires."""
    now_ms, expires_ms = times
    db.execute(
        "INSERT INTO files VALUES (?, ?, ?, ?, ?, ?, ?, ?, 1)",
        (file_id, owner, OUTPUT, name, size, now_ms, expires_ms, now_ms),
    )


def used(db: sqlite3.Connection, owner: str) -> int:
    """Bytes of all files and stored responses of a key, uploads under way included."""
    row = db.execute(
        "SELECT (SELECT coalesce(sum(bytes), 0) FROM files WHERE owner = :owner)"
        " + (SELECT coalesce(sum(bytes), 0) FROM responses WHERE owner = :owner)",
        {"owner": owner},
    )
    return int(row.fetchone()[0])


def find(db: sqlite3.Connection, file_id: str, owner: str) -> sqlite3.Row:
    """Raises BatonError(NOT_FOUND), also for a file of another key."""
    row: sqlite3.Row | None = db.execute(
        "SELECT * FROM files WHERE id = ? AND owner = ? AND whole = 1", (file_id, owner)
    ).fetchone()
    if row is None:
        raise unknown(file_id)
    return row


def unknown(file_id: str) -> BatonError:
    return BatonError(Code.NOT_FOUND, f"there is no file {file_id[:64]!r}", param="file_id")


def page(
    db: sqlite3.Connection, owner: str, purpose: str, after: str, limit: int, *, newest: bool
) -> list[sqlite3.Row]:
    """At most `limit` and one more. `after`: id of the last file of the page before."""
    about = {"owner": owner, "purpose": purpose, "after": after, "limit": limit + 1}
    rows = db.execute(PAGES[newest], about)
    return rows.fetchall()


def delete(db: sqlite3.Connection, file_id: str, owner: str) -> None:
    """Raises BatonError(NOT_FOUND), and INVALID_REQUEST while a batch reads it."""
    find(db, file_id, owner)
    batch = db.execute("SELECT id FROM open_batches WHERE input = ?", (file_id,)).fetchone()
    if batch is not None:
        sentence = f"{batch['id']} still reads this file; cancel it first"
        raise BatonError(Code.INVALID_REQUEST, sentence, param="file_id")
    drop(db, file_id)


def drop(db: sqlite3.Connection, file_id: str) -> None:
    db.execute("DELETE FROM files WHERE id = ?", (file_id,))


def expire(db: sqlite3.Connection, now_ms: int) -> list[str]:
    """Forgets the files whose time is over and uploads that were given up. Returns their ids. A
    file that a batch still reads stays until its end."""
    rows = db.execute(
        "DELETE FROM files WHERE ((expires_ms > 0 AND expires_ms <= ?)"
        " OR (whole = 0 AND touched_ms <= ?)) AND id NOT IN"
        " (SELECT input FROM open_batches) RETURNING id",
        (now_ms, now_ms - STALE_MS),
    )
    return [row["id"] for row in rows.fetchall()]


def strangers(db: sqlite3.Connection, names: list[str]) -> list[str]:
    """Those of these names in the folder that no file has."""
    known = {row["id"] for row in db.execute("SELECT id FROM files")}
    return [name for name in names if name not in known]


def shown(row: sqlite3.Row) -> dict[str, Any]:
    """A file in OpenAI's shape."""
    return {
        "id": row["id"],
        "object": "file",
        "bytes": row["bytes"],
        "created_at": row["created_ms"] // 1000,
        "expires_at": row["expires_ms"] // 1000 or None,
        "filename": row["name"],
        "purpose": row["purpose"],
        "status": "processed",
        "status_details": None,
    }
