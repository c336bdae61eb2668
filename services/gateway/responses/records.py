"""The table of responses. Functions take the ledger's connection in a transaction.

A response belongs to the API key that it came with, and no other key sees it. One that somebody
waits for is written when its answer is there. One of the background is written before (`queued`),
and runs (`in_progress`) as a line of a batch does: who takes it holds it until a deadline, which he
moves on while he lives, and under a fencing number that grows with each taking. Its answer is taken
once, and only under the number that it has now.

Each row has its whole conversation, so that one that goes on from it needs no other row, whichever
of them was deleted or has expired. `events.py` has what else belongs to one that is streamed; it is
deleted with the row, and its bytes are among those of the row.
"""

from __future__ import annotations

import enum
import sqlite3
from collections.abc import Sequence
from typing import NamedTuple

from common.errors import BatonError, Code
from services.gateway.jobs import files
from services.gateway.jobs.leases import LOSSES_MAX, Key, Return
from services.gateway.responses import conversation
from services.gateway.responses.conversation import PREVIOUS


class Status(enum.StrEnum):
    """OpenAI's words."""

    QUEUED = "queued"
    IN_PROGRESS = "in_progress"
    COMPLETED = "completed"
    INCOMPLETE = "incomplete"
    FAILED = "failed"
    CANCELLED = "cancelled"


TERMINAL = frozenset({Status.COMPLETED, Status.INCOMPLETE, Status.FAILED, Status.CANCELLED})
ANSWERED = frozenset({Status.COMPLETED, Status.INCOMPLETE})
TRANSITIONS: dict[Status, frozenset[Status]] = {
    Status.QUEUED: frozenset({Status.IN_PROGRESS, Status.FAILED, Status.CANCELLED}),
    Status.IN_PROGRESS: frozenset({Status.QUEUED, *TERMINAL}),
    **{status: frozenset() for status in TERMINAL},
}


class Bounds(NamedTuple):
    """Of one key. `responses`: rows. `background`: those that are not over."""

    responses: int
    background: int
    quota_bytes: int


class Record(NamedTuple):
    """A row, as it is written. `shown`: the response in OpenAI's shape. `items`: the conversation
    that was answered. `request`: the body that is to run; empty for one that has an answer."""

    id: str
    owner: str
    status: Status
    background: bool
    created_ms: int
    expires_ms: int
    shown: bytes
    items: bytes
    request: bytes = b""
    #: The events before any run of one that is streamed; empty for others.
    events: tuple[bytes, ...] = ()

    @property
    def size(self) -> int:
        return sum(map(len, (self.shown, self.items, self.request, *self.events)))


class Held(NamedTuple):
    """A response that this process runs."""

    id: str
    fence: int
    #: Attempts that failed before.
    failures: int
    owner: str
    shown: bytes
    request: bytes
    #: Number of the first event of the latest run; None: it is not streamed.
    stream_from: int | None

    @property
    def key(self) -> Key:
        """Of this taking."""
        return self.id, self.fence


class Result(NamedTuple):
    """What became of one that was held."""

    held: Held
    status: Status
    shown: bytes

    @property
    def failed(self) -> bool:
        return self.status is Status.FAILED


# ---------------------------------------------------------------- what clients ask for


def find(db: sqlite3.Connection, response_id: str, owner: str, now_ms: int) -> sqlite3.Row:
    """Raises BatonError(NOT_FOUND), also for a response of another key."""
    row: sqlite3.Row | None = db.execute(
        "SELECT * FROM responses WHERE id = ? AND owner = ? AND expires_ms > ?",
        (response_id, owner, now_ms),
    ).fetchone()
    if row is None:
        raise unknown(response_id)
    return row


def before(db: sqlite3.Connection, response_id: str, owner: str, now_ms: int) -> sqlite3.Row:
    """One that a conversation goes on from. Raises BatonError(NOT_FOUND | INVALID_REQUEST)."""
    try:
        row = find(db, response_id, owner, now_ms)
    except BatonError as error:
        raise unknown(response_id, PREVIOUS) from error
    status = Status(row["status"])
    if status not in TERMINAL:
        sentence = f"{response_id} is {status.value}; ask for it until it is completed"
        raise BatonError(Code.INVALID_REQUEST, sentence, param=PREVIOUS)
    if status not in ANSWERED:
        sentence = f"{response_id} has no answer to go on from: it is {status.value}"
        raise BatonError(Code.INVALID_REQUEST, sentence, param=PREVIOUS)
    return row


def unknown(response_id: str, param: str = "response_id") -> BatonError:
    sentence = (
        f"there is no response {response_id[:128]!r}: it was not stored, was deleted, made room for"
        " newer ones (gateway.jobs.responses_max), or has expired (gateway.jobs.keep_hours)"
    )
    return BatonError(Code.NOT_FOUND, sentence, param=param)


def shown(row: sqlite3.Row) -> bytes:
    """The response as it is now."""
    return conversation.marked(row["shown"], status=row["status"])


def delete(db: sqlite3.Connection, response_id: str, owner: str, now_ms: int) -> None:
    """Raises BatonError(NOT_FOUND). One that runs is broken off."""
    find(db, response_id, owner, now_ms)
    db.execute("DELETE FROM responses WHERE id = ?", (response_id,))


def cancel(db: sqlite3.Connection, response_id: str, owner: str, now_ms: int) -> sqlite3.Row:
    """Raises BatonError(NOT_FOUND), and INVALID_REQUEST if there is nothing to cancel."""
    row = find(db, response_id, owner, now_ms)
    status = Status(row["status"])
    if not row["background"]:
        sentence = "only a response that was made with background: true can be cancelled"
        raise BatonError(Code.INVALID_REQUEST, sentence, param="response_id")
    if status is not Status.CANCELLED:
        if Status.CANCELLED not in TRANSITIONS[status]:
            sentence = f"this response cannot be cancelled: it is {status.value}"
            raise BatonError(Code.INVALID_REQUEST, sentence, param="response_id")
        db.execute(
            "UPDATE responses SET status = 'cancelled', request = x'', held_by = '',"
            " bytes = length(items) + length(shown) + ? WHERE id = ?",
            (_event_bytes(db, response_id), response_id),
        )
    return find(db, response_id, owner, now_ms)


# ---------------------------------------------------------------- room for another one


def check_room(db: sqlite3.Connection, owner: str, size: int, bounds: Bounds) -> None:
    """Whether one of so many bytes has room at all. Raises BatonError(BODY_TOO_LARGE)."""
    if _of_files(db, owner) + size > bounds.quota_bytes:
        raise _over_quota(bounds.quota_bytes)


def insert(db: sqlite3.Connection, record: Record, bounds: Bounds) -> int:
    """Returns how many older ones made room. Raises BatonError(BODY_TOO_LARGE) where that does not
    help, and RATE_LIMITED while too many of the key are not over."""
    owner = record.owner
    if record.status not in TERMINAL:
        (at_work,) = db.execute(
            "SELECT count(*) FROM open_responses WHERE owner = ?", (owner,)
        ).fetchone()
        if at_work >= min(bounds.background, bounds.responses):
            sentence = f"{at_work} responses of this key are not over (gateway.jobs.background_max)"
            raise BatonError(Code.RATE_LIMITED, sentence, retry_after_ms=5_000)
    evicted = _make_room(db, owner, record.size, bounds)
    db.execute(
        "INSERT INTO responses (id, owner, status, background, created_ms, expires_ms, shown,"
        " items, request, stream_from, bytes) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
        (*record[:-1], len(record.events) or None, record.size),
    )
    rows = [(record.id, number, event) for number, event in enumerate(record.events)]
    db.executemany("INSERT INTO response_events VALUES (?, ?, ?)", rows)
    return evicted


def _make_room(db: sqlite3.Connection, owner: str, size: int, bounds: Bounds) -> int:
    rows, used = db.execute(
        "SELECT count(*), coalesce(sum(bytes), 0) FROM responses WHERE owner = ?", (owner,)
    ).fetchone()
    rows, used = rows + 1, used + size + _of_files(db, owner)
    evicted: list[tuple[str]] = []
    if rows > bounds.responses or used > bounds.quota_bytes:
        oldest = db.execute(
            "SELECT id, bytes FROM responses WHERE owner = ?"
            " AND status NOT IN ('queued', 'in_progress') ORDER BY created_ms, id",
            (owner,),
        )
        for row in oldest.fetchall():
            if rows <= bounds.responses and used <= bounds.quota_bytes:
                break
            evicted.append((row["id"],))
            rows, used = rows - 1, used - row["bytes"]
    if rows > bounds.responses or used > bounds.quota_bytes:
        raise _over_quota(bounds.quota_bytes)
    db.executemany("DELETE FROM responses WHERE id = ?", evicted)
    return len(evicted)


def _of_files(db: sqlite3.Connection, owner: str) -> int:
    row = db.execute("SELECT coalesce(sum(bytes), 0) FROM files WHERE owner = ?", (owner,))
    return int(row.fetchone()[0])


def _over_quota(quota_bytes: int) -> BatonError:
    error = files.over_quota(quota_bytes)
    sentence = f"{error.message}, or set store to false"
    return BatonError(error.code, sentence, param=conversation.STORE)


# ---------------------------------------------------------------- one holder


def is_quiet(db: sqlite3.Connection) -> bool:
    """Whether nothing waits or runs."""
    return db.execute("SELECT 1 FROM open_responses LIMIT 1").fetchone() is None


def take(db: sqlite3.Connection, holder: str, most: int, now_ms: int, until_ms: int) -> list[Held]:
    """Responses that nobody holds, the oldest of each key first. Keys take turns: what one runs
    already counts."""
    chosen = db.execute(
        "SELECT id FROM (SELECT id, status, retry_ms, created_ms, row_number() OVER"
        " (PARTITION BY owner ORDER BY status, created_ms, id) AS turn FROM open_responses)"
        " WHERE status = 'queued' AND retry_ms <= ? ORDER BY turn, created_ms, id LIMIT ?",
        (now_ms, most),
    ).fetchall()
    taken = []
    for row in chosen:
        held = db.execute(
            "UPDATE responses SET status = 'in_progress', fence = fence + 1, held_by = ?,"
            " held_until_ms = ? WHERE id = ?"
            " RETURNING id, fence, failures, owner, shown, request, stream_from",
            (holder, until_ms, row["id"]),
        ).fetchone()
        taken.append(Held(*held))
    return taken


def renew(db: sqlite3.Connection, holder: str, until_ms: int) -> set[Key]:
    """Goes on holding all that this process holds. Returns their keys: what else it runs was
    cancelled or deleted, or is another's."""
    rows = db.execute(
        "UPDATE responses SET held_until_ms = ? WHERE status = 'in_progress' AND held_by = ?"
        " RETURNING id, fence",
        (until_ms, holder),
    )
    return {(row["id"], row["fence"]) for row in rows.fetchall()}


def settle(db: sqlite3.Connection, outcomes: Sequence[Result | Return[Held]]) -> int:
    """Writes down what became of responses. Returns how many of the outcomes came too late."""
    late = 0
    for outcome in outcomes:
        held = outcome.held
        if isinstance(outcome, Result):
            changed = _end(db, held.id, held.fence, outcome.status, outcome.shown)
        else:
            changed = db.execute(
                "UPDATE responses SET status = 'queued', held_by = '', failures = failures + ?"
                " WHERE id = ? AND fence = ? AND status = 'in_progress'",
                (outcome.counts, held.id, held.fence),
            ).rowcount
            if changed and outcome.retry_ms:
                db.execute(
                    "UPDATE responses SET retry_ms = max(retry_ms, ?)"
                    " WHERE owner = ? AND status = 'queued'",
                    (outcome.retry_ms, held.owner),
                )
        late += not changed
    return late


def _end(
    db: sqlite3.Connection, response_id: str, fence: int, status: Status, answer: bytes
) -> int:
    return db.execute(
        "UPDATE responses SET status = :status, shown = :shown, request = x'', held_by = '',"
        " bytes = length(items) + :size"
        " WHERE id = :id AND fence = :fence AND status IN ('queued', 'in_progress')",
        {
            "status": status.value,
            "shown": answer,
            "size": len(answer) + _event_bytes(db, response_id),
            "id": response_id,
            "fence": fence,
        },
    ).rowcount


def recount(db: sqlite3.Connection, response_id: str) -> None:
    """Its bytes, after its events have changed. Writes the whole row."""
    db.execute(
        "UPDATE responses SET bytes = length(items) + length(shown) + length(request) + ?"
        " WHERE id = ?",
        (_event_bytes(db, response_id), response_id),
    )


def _event_bytes(db: sqlite3.Connection, response_id: str) -> int:
    sizes = "SELECT coalesce(sum(length(event)), 0) FROM response_events WHERE response = ?"
    return int(db.execute(sizes, (response_id,)).fetchone()[0])


# ---------------------------------------------------------------- by the clock


def reclaim(db: sqlite3.Connection, now_ms: int) -> int:
    """Returns responses of processes that say nothing any more to those that wait, and gives up the
    ones that were lost too often. Returns how many there were."""
    rows = db.execute(
        "UPDATE responses SET status = 'queued', held_by = '', losses = losses + 1"
        " WHERE status = 'in_progress' AND held_until_ms <= ? RETURNING id, fence, losses, shown",
        (now_ms,),
    ).fetchall()
    for row in rows:
        if row["losses"] >= LOSSES_MAX:
            _give_up(db, row, f"the gateway was lost {LOSSES_MAX} times while it ran this")
    return len(rows)


def expire(db: sqlite3.Connection, now_ms: int, keep_ms: int) -> None:
    """Forgets those whose time is over. One that has waited or run for so long fails, and is kept
    for `keep_ms` more."""
    rows = db.execute(
        "UPDATE responses SET expires_ms = ? WHERE expires_ms <= ?"
        " AND status IN ('queued', 'in_progress') RETURNING id, fence, shown",
        (now_ms + keep_ms, now_ms),
    ).fetchall()
    for row in rows:
        _give_up(db, row, "it was not answered within gateway.jobs.keep_hours")
    db.execute("DELETE FROM responses WHERE expires_ms <= ?", (now_ms,))


def _give_up(db: sqlite3.Connection, row: sqlite3.Row, sentence: str) -> None:
    error = BatonError(Code.INTERNAL, sentence)
    answer = conversation.failed(row["shown"], error)
    _end(db, row["id"], row["fence"], Status.FAILED, answer)
