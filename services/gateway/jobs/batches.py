"""The table of batches and their states. Functions take the ledger's connection in a transaction.

A batch is planned (`validating`), its lines run (`in_progress`), and its files are written
(`finalizing`, or `cancelling` once no line of it runs). For the first and the last one process
holds the batch: until a deadline, under a fencing number that each holder gets anew. What a holder
writes after another took its place is refused.
"""

from __future__ import annotations

import enum
import json
import secrets
import sqlite3
from typing import Any

from common.errors import BatonError, Code
from services.gateway.jobs.lines import LineState

#: Batches of one page.
PAGE_MAX = 100


class Status(enum.StrEnum):
    """OpenAI's words."""

    VALIDATING = "validating"
    IN_PROGRESS = "in_progress"
    FINALIZING = "finalizing"
    CANCELLING = "cancelling"
    COMPLETED = "completed"
    FAILED = "failed"
    EXPIRED = "expired"
    CANCELLED = "cancelled"


TERMINAL = frozenset({Status.COMPLETED, Status.FAILED, Status.EXPIRED, Status.CANCELLED})
TRANSITIONS: dict[Status, frozenset[Status]] = {
    Status.VALIDATING: frozenset(
        {Status.IN_PROGRESS, Status.FINALIZING, Status.CANCELLING, Status.FAILED}
    ),
    Status.IN_PROGRESS: frozenset({Status.FINALIZING, Status.CANCELLING}),
    Status.FINALIZING: frozenset({Status.COMPLETED, Status.EXPIRED}),
    Status.CANCELLING: frozenset({Status.CANCELLED}),
    Status.COMPLETED: frozenset(),
    Status.FAILED: frozenset(),
    Status.EXPIRED: frozenset(),
    Status.CANCELLED: frozenset(),
}


class LostHoldError(Exception):
    """Another process holds the batch now, or its state is another one."""


def create(db: sqlite3.Connection, fields: dict[str, Any], most: int) -> sqlite3.Row:
    """`fields`: the columns that a client decides, and `created_ms`. Raises
    BatonError(RATE_LIMITED) while the key has `most` that are not over."""
    (open_ones,) = db.execute(
        "SELECT count(*) FROM open_batches WHERE owner = ?", (fields["owner"],)
    ).fetchone()
    if open_ones >= most:
        sentence = f"{most} batches of this key are not over (gateway.jobs.batches_max)"
        raise BatonError(Code.RATE_LIMITED, sentence, retry_after_ms=60_000)
    batch_id = f"batch_{secrets.token_hex(16)}"
    db.execute(
        "INSERT INTO batches (id, status, owner, endpoint, input, completion_window, metadata,"
        " created_ms, expires_ms, output_keep_ms) VALUES (:id, :status, :owner, :endpoint, :input,"
        " :completion_window, :metadata, :created_ms, :expires_ms, :output_keep_ms)",
        {"id": batch_id, "status": Status.VALIDATING.value, **fields},
    )
    return find(db, batch_id, fields["owner"])


def find(db: sqlite3.Connection, batch_id: str, owner: str) -> sqlite3.Row:
    """Raises BatonError(NOT_FOUND), also for a batch of another key."""
    row: sqlite3.Row | None = db.execute(
        "SELECT * FROM batches WHERE id = ? AND owner = ?", (batch_id, owner)
    ).fetchone()
    if row is None:
        sentence = f"there is no batch {batch_id[:64]!r}"
        raise BatonError(Code.NOT_FOUND, sentence, param="batch_id")
    return row


def page(db: sqlite3.Connection, owner: str, after: str, limit: int) -> list[sqlite3.Row]:
    """At most `limit` and one more, the newest first."""
    rows = db.execute(
        "SELECT * FROM batches WHERE owner = :owner AND (:after = '' OR (created_ms, id) <"
        " (SELECT created_ms, id FROM batches WHERE id = :after AND owner = :owner))"
        " ORDER BY created_ms DESC, id DESC LIMIT :limit",
        {"owner": owner, "after": after, "limit": limit + 1},
    )
    return rows.fetchall()


def cancel(db: sqlite3.Connection, batch_id: str, owner: str, now_ms: int) -> sqlite3.Row:
    """Raises BatonError(NOT_FOUND), and INVALID_REQUEST if it is over or about to be."""
    status = Status(find(db, batch_id, owner)["status"])
    if status is not Status.CANCELLING:
        if Status.CANCELLING not in TRANSITIONS[status]:
            sentence = f"this batch cannot be cancelled: it is {status.value}"
            raise BatonError(Code.INVALID_REQUEST, sentence, param="batch_id")
        db.execute(
            "UPDATE batches SET status = 'cancelling', ends_as = 'cancelled', cancelling_ms = ?,"
            " held_until_ms = 0 WHERE id = ?",
            (now_ms, batch_id),
        )
    return find(db, batch_id, owner)


# ---------------------------------------------------------------- by the clock


def expire(db: sqlite3.Connection, now_ms: int, keep_ms: int) -> list[str]:
    """Ends the batches whose window is over, and forgets those that have been over for `keep_ms`.
    Returns the ids of the former."""
    ended = db.execute(
        "UPDATE batches SET status = 'finalizing', ends_as = 'expired', finalizing_ms = :now,"
        " held_until_ms = 0 WHERE status IN ('validating', 'in_progress') AND expires_ms <= :now"
        " RETURNING id",
        {"now": now_ms},
    ).fetchall()
    db.execute("DELETE FROM batches WHERE ended_ms <= ?", (now_ms - keep_ms,))
    return [row["id"] for row in ended]


def is_quiet(db: sqlite3.Connection) -> bool:
    """Whether no batch has anything left to do."""
    return db.execute("SELECT 1 FROM open_batches LIMIT 1").fetchone() is None


# ---------------------------------------------------------------- one holder


def take(db: sqlite3.Connection, holder: str, now_ms: int, until_ms: int) -> sqlite3.Row | None:
    """One batch that is to be planned, or whose files are to be written because no line of it runs
    any more. None: there is none that nobody holds."""
    row: sqlite3.Row | None = db.execute(
        "UPDATE batches SET held_by = :holder, held_until_ms = :until, fence = fence + 1"
        " WHERE id = (SELECT id FROM batches"
        " WHERE status IN ('validating', 'finalizing', 'cancelling') AND held_until_ms <= :now"
        " AND (status = 'validating' OR NOT EXISTS"
        " (SELECT 1 FROM lines WHERE batch = batches.id AND state = :running))"
        " ORDER BY created_ms, id LIMIT 1) RETURNING *",
        {"holder": holder, "until": until_ms, "now": now_ms, "running": LineState.RUNNING},
    ).fetchone()
    return row


def hold(db: sqlite3.Connection, taken: sqlite3.Row, until_ms: int) -> None:
    """Goes on holding it. Raises LostHoldError."""
    changed = db.execute(
        "UPDATE batches SET held_until_ms = ? WHERE id = ? AND fence = ? AND status = ?",
        (until_ms, taken["id"], taken["fence"], taken["status"]),
    )
    if not changed.rowcount:
        raise LostHoldError(taken["id"])


def let_go(db: sqlite3.Connection, taken: sqlite3.Row, until_ms: int) -> None:
    """Another may take it from `until_ms` on."""
    db.execute(
        "UPDATE batches SET held_until_ms = ? WHERE id = ? AND fence = ?",
        (until_ms, taken["id"], taken["fence"]),
    )


def planned(db: sqlite3.Connection, taken: sqlite3.Row, now_ms: int) -> None:
    """All lines are in the ledger. Raises LostHoldError."""
    hold(db, taken, 0)
    (total, failed) = db.execute(
        "SELECT count(*), coalesce(sum(state = ?), 0) FROM lines WHERE batch = ?",
        (LineState.FAILED, taken["id"]),
    ).fetchone()
    db.execute(
        "UPDATE batches SET status = 'in_progress', begun_ms = ?, total = ?, failed = ?"
        " WHERE id = ?",
        (now_ms, total, failed, taken["id"]),
    )
    close_if_done(db, taken["id"], now_ms)


def close_if_done(db: sqlite3.Connection, batch_id: str, now_ms: int) -> None:
    """Its files can be written when no line is left."""
    db.execute(
        "UPDATE batches SET status = 'finalizing', finalizing_ms = ?"
        " WHERE id = ? AND status = 'in_progress' AND completed + failed >= total",
        (now_ms, batch_id),
    )


def refuse(db: sqlite3.Connection, taken: sqlite3.Row, errors: list[Any], now_ms: int) -> None:
    """The file is none that can be run. Raises LostHoldError."""
    hold(db, taken, 0)
    db.execute(
        "UPDATE batches SET status = 'failed', errors = ?, ended_ms = ? WHERE id = ?",
        (json.dumps(errors), now_ms, taken["id"]),
    )
    db.execute("DELETE FROM lines WHERE batch = ?", (taken["id"],))
    db.execute("DELETE FROM results WHERE batch = ?", (taken["id"],))


def finish(
    db: sqlite3.Connection,
    taken: sqlite3.Row,
    outputs: tuple[str | None, str | None],
    unrun: int,
    now_ms: int,
) -> None:
    """The files are written. `outputs`: ids of output and error file; None: there is none. `unrun`:
    lines that were never answered. Raises LostHoldError."""
    hold(db, taken, 0)
    db.execute(
        "UPDATE batches SET status = ends_as, output = ?, error_output = ?, ended_ms = ?,"
        " failed = failed + ? WHERE id = ?",
        (*outputs, now_ms, unrun, taken["id"]),
    )
    db.execute("DELETE FROM lines WHERE batch = ?", (taken["id"],))
    db.execute("DELETE FROM results WHERE batch = ?", (taken["id"],))


def shown(row: sqlite3.Row) -> dict[str, Any]:
    """A batch in OpenAI's shape."""
    ended = dict.fromkeys(TERMINAL) | {row["status"]: _seconds(row["ended_ms"])}
    errors = json.loads(row["errors"]) if row["errors"] else None
    usage = {
        "input_tokens": row["prompt_tokens"],
        "input_tokens_details": {"cached_tokens": row["cached_tokens"]},
        "output_tokens": row["completion_tokens"],
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": row["prompt_tokens"] + row["completion_tokens"],
    }
    return {
        "id": row["id"],
        "object": "batch",
        "endpoint": row["endpoint"],
        "errors": None if errors is None else {"object": "list", "data": errors},
        "input_file_id": row["input"],
        "completion_window": row["completion_window"],
        "status": row["status"],
        "output_file_id": row["output"],
        "error_file_id": row["error_output"],
        "created_at": _seconds(row["created_ms"]),
        "in_progress_at": _seconds(row["begun_ms"]),
        "expires_at": _seconds(row["expires_ms"]),
        "finalizing_at": _seconds(row["finalizing_ms"]),
        "completed_at": ended[Status.COMPLETED],
        "failed_at": ended[Status.FAILED],
        "expired_at": ended[Status.EXPIRED],
        "cancelling_at": _seconds(row["cancelling_ms"]),
        "cancelled_at": ended[Status.CANCELLED],
        "request_counts": {name: row[name] for name in ("total", "completed", "failed")},
        "usage": usage,
        "metadata": json.loads(row["metadata"]) or None,
    }


def _seconds(instant_ms: int | None) -> int | None:
    return None if instant_ms is None else instant_ms // 1000
