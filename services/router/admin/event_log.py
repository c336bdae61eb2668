"""The router's latest log events, numbered, so that a client notices when it missed some.

A stream over the admin socket is a cursor: the client sends the last number that it has, and the
answer contains the number of later events that are already dropped. The router keeps no state for a
client and never waits for one.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from itertools import islice
from typing import Any

from common.net.admin_verbs import EVENTS_MAX
from services.router.events import Note


@dataclass(frozen=True, slots=True)
class LoggedEvent:
    """One event of the log."""

    #: From 1, without gaps.
    number: int
    #: When it was logged.
    unix_ms: int
    note: Note


class EventLog:
    """Keeps the latest `most` events."""

    def __init__(self, most: int = EVENTS_MAX) -> None:
        self._events: deque[LoggedEvent] = deque(maxlen=most)
        #: Number of the last event; 0 = there was none.
        self.last = 0

    def add(self, note: Note, unix_ms: int) -> None:
        self.last += 1
        self._events.append(LoggedEvent(self.last, unix_ms, note))

    def after(self, number: int, limit: int) -> dict[str, Any]:
        """The next `limit` events after this number, or with -1 the latest ones. A number greater
        than `last` comes from an earlier router, so all events are new to the client."""
        if number > self.last:
            number = 0
        oldest = self.last - len(self._events)
        skipped = max(0, self.last - limit if number < 0 else number) - oldest
        shown = list(islice(self._events, max(0, skipped), max(0, skipped) + limit))
        return {
            "events": [_row(event) for event in shown],
            "last": shown[-1].number if shown else self.last,
            "missed": max(0, oldest - number) if number >= 0 else 0,
        }


def _row(event: LoggedEvent) -> dict[str, Any]:
    note = event.note
    return {
        "number": event.number,
        "unix_ms": event.unix_ms,
        "level": note.level,
        "event": note.event,
        "sentence": note.sentence,
        "request_id": str(note.fields.get("request_id") or ""),
    }
