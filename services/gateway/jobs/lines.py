"""The table of lines: what keeps two processes from running one, and a dead one from keeping it.

Theory of operation: who takes a line holds it until a deadline, which he moves on while he lives,
and under a fencing number that grows with each taking. A result is taken once, and only under the
number that the line has now: a process that was believed dead and comes back finds its number used
up. Nothing is locked, so nothing has to be unlocked after a crash: the deadline passes, and the
line waits again.

A line that was lost with its process `LOSSES_MAX` times is not tried again: it may be what kills.
"""

from __future__ import annotations

import enum
import sqlite3
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from services.gateway.jobs.entries import Usage, not_run
from services.gateway.jobs.leases import LOSSES_MAX, Key, Return


class LineState(enum.IntEnum):
    """Where a line is."""

    WAITING = 0
    #: A process holds it.
    RUNNING = 1
    #: It has an answer.
    DONE = 2
    #: It has an error.
    FAILED = 3


TRANSITIONS: dict[LineState, frozenset[LineState]] = {
    LineState.WAITING: frozenset({LineState.RUNNING}),
    LineState.RUNNING: frozenset({LineState.WAITING, LineState.DONE, LineState.FAILED}),
    LineState.DONE: frozenset(),
    LineState.FAILED: frozenset(),
}


class Line(NamedTuple):
    """A line of an input file, as it is planned."""

    #: In the file, from 1.
    number: int
    #: Lines that sort together begin alike.
    prefix: bytes
    #: Where it is in the file, in bytes.
    at: int
    length: int
    #: None: it has none that can be used.
    custom_id: str | None
    #: The entry of the error file, for a line that cannot be run; empty otherwise.
    entry: bytes = b""


class Held(NamedTuple):
    """A line that this process runs."""

    batch: str
    number: int
    fence: int
    #: Attempts that failed before.
    failures: int
    custom_id: str
    owner: str
    endpoint: str
    #: Id of the input file, and where the line is in it.
    input: str
    at: int
    length: int

    @property
    def key(self) -> Key:
        """Of this taking."""
        return self.batch, self.number, self.fence


class Result(NamedTuple):
    """What became of a line that was held."""

    held: Held
    #: A line of the output file, or of the error file.
    entry: bytes
    failed: bool
    usage: Usage = Usage()


def insert(db: sqlite3.Connection, batch: str, planned: Iterable[Line]) -> None:
    for line in planned:
        state = LineState.FAILED if line.entry else LineState.WAITING
        db.execute(
            "INSERT INTO lines (batch, number, prefix, at, length, custom_id, state)"
            " VALUES (?, ?, ?, ?, ?, ?, ?)",
            (batch, line.number, line.prefix, line.at, line.length, line.custom_id, state),
        )
        if line.entry:
            _keep(db, batch, line.number, line.entry, failed=True)


def forget(db: sqlite3.Connection, batch: str) -> None:
    """Planning begins anew."""
    db.execute("DELETE FROM lines WHERE batch = ?", (batch,))
    db.execute("DELETE FROM results WHERE batch = ?", (batch,))


def take(
    db: sqlite3.Connection, holder: str, most: int, turn: int, now_ms: int, until_ms: int
) -> list[Held]:
    """Lines that nobody holds, in the order of their prefixes. The batches take turns, `turn` says
    whose it is first, so that a large one does not keep the others waiting."""
    batches = db.execute(
        "SELECT id FROM batches WHERE status = 'in_progress' AND retry_ms <= ?"
        " AND EXISTS (SELECT 1 FROM lines WHERE batch = batches.id AND state = 0)"
        " ORDER BY created_ms, id",
        (now_ms,),
    ).fetchall()
    taken: list[Held] = []
    for place in range(len(batches)):
        batch = batches[(turn + place) % len(batches)]["id"]
        share = -(-(most - len(taken)) // (len(batches) - place))
        taken += _take_of(db, batch, holder, share, until_ms)
    return taken


def _take_of(
    db: sqlite3.Connection, batch: str, holder: str, most: int, until_ms: int
) -> list[Held]:
    chosen = db.execute(
        "SELECT number FROM lines WHERE batch = ? AND state = 0 ORDER BY prefix, number LIMIT ?",
        (batch, most),
    ).fetchall()
    for row in chosen:
        db.execute(
            "UPDATE lines SET state = 1, fence = fence + 1, held_by = ?, held_until_ms = ?"
            " WHERE batch = ? AND number = ?",
            (holder, until_ms, batch, row["number"]),
        )
    return [_held(db, batch, row["number"]) for row in chosen]


def _held(db: sqlite3.Connection, batch: str, number: int) -> Held:
    row = db.execute(
        "SELECT lines.batch, number, lines.fence, failures, custom_id, owner, endpoint, input, at,"
        " length FROM lines JOIN batches ON batches.id = lines.batch"
        " WHERE lines.batch = ? AND number = ?",
        (batch, number),
    ).fetchone()
    return Held(*row)


def renew(db: sqlite3.Connection, holder: str, until_ms: int) -> set[Key]:
    """Goes on holding all that this process holds. Returns those of it that are to be run: the
    batches of the others are to end."""
    db.execute(
        "UPDATE lines SET held_until_ms = ? WHERE state = 1 AND held_by = ?", (until_ms, holder)
    )
    rows = db.execute(
        "SELECT batch, number, lines.fence FROM lines JOIN batches ON batches.id = lines.batch"
        " WHERE state = 1 AND lines.held_by = ? AND status = 'in_progress'",
        (holder,),
    )
    return {(row["batch"], row["number"], row["fence"]) for row in rows}


def settle(db: sqlite3.Connection, outcomes: Sequence[Result | Return[Held]]) -> int:
    """Writes down what became of lines. Returns how many of the outcomes came too late: their lines
    are another process's now, or have a result."""
    late = 0
    for outcome in outcomes:
        batch, number, fence = outcome.held[:3]
        if isinstance(outcome, Result):
            state = LineState.FAILED if outcome.failed else LineState.DONE
        else:
            state = LineState.WAITING
        changed = db.execute(
            "UPDATE lines SET state = ?, failures = failures + ?, held_by = ''"
            " WHERE batch = ? AND number = ? AND fence = ? AND state = 1",
            (state, isinstance(outcome, Return) and outcome.counts, batch, number, fence),
        )
        if not changed.rowcount:
            late += 1
        elif isinstance(outcome, Result):
            _keep(db, batch, number, outcome.entry, failed=outcome.failed)
            _count(db, batch, outcome)
        elif outcome.retry_ms:
            db.execute(
                "UPDATE batches SET retry_ms = max(retry_ms, ?) WHERE id = ?",
                (outcome.retry_ms, batch),
            )
    return late


def _keep(db: sqlite3.Connection, batch: str, number: int, entry: bytes, *, failed: bool) -> None:
    db.execute("INSERT INTO results VALUES (?, ?, ?, ?)", (batch, number, failed, entry))


def _count(db: sqlite3.Connection, batch: str, result: Result) -> None:
    db.execute(
        "UPDATE batches SET failed = failed + ?, completed = completed + ?,"
        " prompt_tokens = prompt_tokens + ?, cached_tokens = cached_tokens + ?,"
        " completion_tokens = completion_tokens + ? WHERE id = ?",
        (result.failed, not result.failed, *result.usage, batch),
    )


def reclaim(db: sqlite3.Connection, now_ms: int) -> list[str]:
    """Returns the lines of processes that say nothing any more to those that wait, and gives up the
    ones that were lost too often. Returns the batch of each."""
    rows = db.execute(
        "UPDATE lines SET state = 0, held_by = '', losses = losses + 1"
        " WHERE state = 1 AND held_until_ms <= ? RETURNING batch, number, custom_id, losses",
        (now_ms,),
    ).fetchall()
    for row in rows:
        if row["losses"] < LOSSES_MAX:
            continue
        batch, number = row["batch"], row["number"]
        sentence = f"the gateway was lost {LOSSES_MAX} times while it ran this line"
        entry = not_run(batch, number, row["custom_id"], "line_lost", sentence)
        db.execute("UPDATE lines SET state = 3 WHERE batch = ? AND number = ?", (batch, number))
        _keep(db, batch, number, entry, failed=True)
        db.execute("UPDATE batches SET failed = failed + 1 WHERE id = ?", (batch,))
    return [row["batch"] for row in rows]


def outcomes_after(db: sqlite3.Connection, batch: str, number: int, most: int) -> list[sqlite3.Row]:
    """The lines of a batch that ends, in the order of the file, from the one after `number` on,
    each with its `entry` and whether it `failed`; both are None of a line that was never
    answered."""
    rows = db.execute(
        "SELECT lines.number, custom_id, failed, entry FROM lines LEFT JOIN results"
        " ON results.batch = lines.batch AND results.number = lines.number"
        " WHERE lines.batch = ? AND lines.number > ? ORDER BY lines.number LIMIT ?",
        (batch, number, most),
    )
    return rows.fetchall()


def counts(db: sqlite3.Connection) -> dict[int, int]:
    """How many lines of batches that are not over are in each state."""
    rows = db.execute("SELECT state, count(*) AS lines FROM lines GROUP BY state")
    return {row["state"]: row["lines"] for row in rows}
