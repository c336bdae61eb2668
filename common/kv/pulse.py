"""Whether the other side of a connection is still there: pure, one for each connection.

A stopped process and a network that swallows packets close no connection, and what waits for them
waits for ever. So while something is awaited from a peer that says nothing for `ASK_SECONDS`, it is
asked; one that has not answered in the time it has for it is lost. A peer that still computes
answers at once: what is asked is its KV thread, not its engine.
"""

from __future__ import annotations

import enum

ASK_SECONDS = 0.25
LATE_LOOK_SECONDS = 0.5


class Look(enum.Enum):
    WELL = "well"
    ASK = "ask"
    LOST = "lost"


class Pulse:
    """`look` is to be called several times a second while something is awaited. `answer_seconds`:
    that the other side has from the question on."""

    def __init__(self, now: float, answer_seconds: float) -> None:
        self._answer_seconds = answer_seconds
        self._spoke_at = now
        self._asked_at: float | None = None
        self._looked_at = now

    def look(self, now: float, *, spoke: bool) -> Look:
        """`spoke`: something came since the last look. A side that did not look for a while, as it
        waited for nothing or stood still itself, blames nobody."""
        late = now - self._looked_at > LATE_LOOK_SECONDS
        self._looked_at = now
        if spoke or late:
            self._spoke_at, self._asked_at = now, None
            return Look.WELL
        if self._asked_at is None:
            if now - self._spoke_at < ASK_SECONDS:
                return Look.WELL
            self._asked_at = now
            return Look.ASK
        return Look.LOST if now - self._asked_at >= self._answer_seconds else Look.WELL
