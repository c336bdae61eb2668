"""Whether the other side of a connection is still there: pure, one object for each connection.

Theory of operation: a stopped process and a network that swallows packets close no connection, and
whatever waits for them would wait for ever. So while something is awaited from a peer that has been
silent for `PING_AFTER_SECONDS`, this side sends a ping, and a peer that does not answer in time is
lost. A peer whose engine is computing answers at once, because its KV thread answers and not its
engine.
"""

from __future__ import annotations

import enum

PING_AFTER_SECONDS = 0.25
LATE_CHECK_SECONDS = 0.5


class Liveness(enum.Enum):
    """What the caller of `check` must do about the peer."""

    ALIVE = "alive"
    """Nothing."""
    PING = "ping"
    """Send a ping now."""
    LOST = "lost"
    """Close the connection: the peer did not answer the ping."""


class Keepalive:
    """Call `check` several times a second while something is awaited from the peer."""

    def __init__(self, now: float, answer_seconds: float) -> None:
        """`answer_seconds`: how long the peer may take to answer a ping."""
        self._answer_seconds = answer_seconds
        self._received_at = now
        self._pinged_at: float | None = None
        self._checked_at = now

    def check(self, now: float, *, received: bool) -> Liveness:
        """`received`: something came from the peer since the last check.

        A side that has not checked for `LATE_CHECK_SECONDS`, because it awaited nothing or was
        itself stopped, starts anew and does not blame the peer.
        """
        late = now - self._checked_at > LATE_CHECK_SECONDS
        self._checked_at = now
        if received or late:
            self._received_at, self._pinged_at = now, None
            return Liveness.ALIVE
        if self._pinged_at is None:
            if now - self._received_at < PING_AFTER_SECONDS:
                return Liveness.ALIVE
            self._pinged_at = now
            return Liveness.PING
        return Liveness.LOST if now - self._pinged_at >= self._answer_seconds else Liveness.ALIVE
