"""Where a request's time went, as its gateway saw it: consecutive legs without a gap.

Theory of operation: a request is in one leg at any instant, from the arrival of its head to its
end, so the legs sum to the whole by construction. A leg turns where the request's state does
(`entry.py`). The silence between a stream's last token and the moment its worker is found lost
belongs to the recovery, not to the decode that it interrupted.
"""

from __future__ import annotations

from dataclasses import dataclass

from common.messages import Leg

INTAKE, HELD, QUEUE, PLACED, DECODE, RECOVERY = (
    "intake", "held", "queue", "placed", "decode", "recovery",
)  # fmt: skip
LEGS_MAX = 64
"""Of a request that is moved more often, the last leg takes the rest."""


@dataclass(slots=True)
class Moment:
    """The instant of the event that the core handles; only `Core.handle` sets it."""

    now: float = 0.0


class Legs:
    """Instants are the core's. `arrived`: when the request's head was complete. `first_token`,
    `last_token`: 0 before there was one. `gap_max`: the longest wait between two messages with
    tokens, seconds."""

    __slots__ = (
        "_attempt", "_done", "_moment", "_name", "_since",
        "arrived", "first_token", "gap_max", "last_token",
    )  # fmt: skip

    def __init__(self, moment: Moment, arrived: float) -> None:
        self._moment = moment
        self._done: list[Leg] = []
        self._name, self._attempt, self._since = INTAKE, 1, arrived
        self.arrived = arrived
        self.first_token = 0.0
        self.last_token = 0.0
        self.gap_max = 0.0

    def turn(self, name: str, attempt: int) -> None:
        """The next leg begins now; a stream that broke off, where its last token came."""
        if (name, attempt) == (self._name, self._attempt) or len(self._done) >= LEGS_MAX - 1:
            return
        now = self.last_token if self._name == DECODE else self._moment.now
        self._close(now)
        self._name, self._attempt = name, attempt

    def token(self) -> float:
        """Tokens came. Seconds since the ones before; 0 for the first of the request."""
        now, last = self._moment.now, self.last_token
        self.last_token = now
        if not last:
            self.first_token = now
            return 0.0
        gap = now - last
        self.gap_max = max(self.gap_max, gap)
        return gap

    def end(self) -> tuple[Leg, ...]:
        """All legs; the last one ends now."""
        self._close(self._moment.now)
        return tuple(self._done)

    def _close(self, now: float) -> None:
        self._done.append(Leg(self._name, self._attempt, (now - self._since) * 1000))
        self._since = now
