"""The router's latest notes, numbered, so that whoever asks again misses none without knowing it.

A stream over the admin socket is a cursor: the asker names the last number that it has, and is told
how many later ones are already gone. Nothing is held for it, and nothing waits for it.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from itertools import islice
from typing import Any

from services.router.events import Note

KEPT_MAX = 1_000


@dataclass(frozen=True, slots=True)
class Kept:
    """`number`: from 1, without gaps. `unix_ms`: when it was noted."""

    number: int
    unix_ms: int
    note: Note


class Recent:
    """The latest `most` notes."""

    def __init__(self, most: int = KEPT_MAX) -> None:
        self._kept: deque[Kept] = deque(maxlen=most)
        self.last = 0

    def add(self, note: Note, unix_ms: int) -> None:
        self.last += 1
        self._kept.append(Kept(self.last, unix_ms, note))

    def after(self, number: int, limit: int) -> dict[str, Any]:
        """The next `limit` notes after this number; with -1, the latest. A number that is yet to
        come is of an earlier router, and all are new to the asker."""
        if number > self.last:
            number = 0
        oldest = self.last - len(self._kept)
        skipped = max(0, self.last - limit if number < 0 else number) - oldest
        shown = list(islice(self._kept, max(0, skipped), max(0, skipped) + limit))
        return {
            "events": [_row(kept) for kept in shown],
            "last": shown[-1].number if shown else self.last,
            "missed": max(0, oldest - number) if number >= 0 else 0,
        }


def _row(kept: Kept) -> dict[str, Any]:
    note = kept.note
    return {
        "number": kept.number,
        "unix_ms": kept.unix_ms,
        "level": note.level,
        "event": note.event,
        "sentence": note.sentence,
        "request_id": str(note.fields.get("request_id") or ""),
    }
