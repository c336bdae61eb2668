"""`Retry-After` as a reservation: each refusal names a time at which the fleet will have room.

Theory of operation. A refused client is given the next free time at the measured drain rate. A
client that comes back at its time redeems its reservation and is admitted before newcomers: a
newcomer is judged as if those who are due and will likely come were ahead of it in the queue.

The share of the clients that come back is measured, so that clients that never do cost little. A
reservation counts towards that share once, when its grace period is over, whether it was redeemed
or not. If a redeemed one counted at once, the share would rise first and fall seconds later.

A request that comes back is recognized by its key, its tenant, its sizes and its content, since it
has a new id. The `Retry-After` header has whole seconds, so a reservation is a whole number of
seconds away. A client that is late is admitted until its grace period is over, but no room is kept
for it.

Without reservations, with `Retry-After` = backlog / drain rate alone, the fleet does the same work,
but at two to four times its capacity half or more of the clients that obey are refused again.
"""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right, insort
from zlib import crc32

from common.config import AdmissionConfig
from services.router.queue.fair_class import QueueAhead
from services.router.records.attempt import Attempt

Signature = tuple[str, str, int, int, int]
"""Key id, tenant, prompt tokens, max_tokens and checksum of the body."""

RESERVATIONS_MAX = 4_096
CLOCK_ERROR_SECONDS = 1e-6


def signature(attempt: Attempt) -> Signature:
    ask = attempt.request
    return (attempt.key_id, attempt.tenant, ask.prompt_tokens, ask.max_tokens, crc32(attempt.body))


class RetryReservations:
    """`len()` is the number of reservations that are neither redeemed nor expired."""

    def __init__(self, config: AdmissionConfig) -> None:
        self._early = config.return_early_ms / 1000
        self._late = config.return_late_ms / 1000
        self._horizon = config.return_horizon_ms / 1000
        self._grace = config.return_grace_ms / 1000
        #: An outcome weighs this much less with each later one.
        self._decay = 1.0 - 1.0 / config.estimate_memory
        #: Reservations that were redeemed and that are over, both decayed.
        self._redeemed, self._over = 1.0, 2.0
        #: Due times by signature, ascending.
        self._due: dict[Signature, list[float]] = {}
        #: The same reservations by due time.
        self._order: list[tuple[float, Signature]] = []
        #: Due times of redeemed reservations whose grace period is not over, ascending.
        self._redeemed_due: list[float] = []
        #: Requests that will likely come back and have a time, as of `_backlog_at`.
        self._backlog = 0.0
        self._backlog_at = 0.0

    def __len__(self) -> int:
        return len(self._order)

    def reserve(
        self, attempt: Attempt, earliest: float, spacing: float, now: float, horizon: float
    ) -> float:
        """Returns when to come back: a whole number of seconds from `now`, not before `earliest`,
        and after the backlog, of which one request is served every `spacing` seconds. No room is
        reserved beyond `horizon` seconds, or while there are `RESERVATIONS_MAX`."""
        self._expire(now)
        self._drain(spacing, now)
        turn = max(earliest, now + self._backlog * spacing)
        due = _whole_seconds(min(turn, now + horizon), now)
        held = len(self._order) + len(self._redeemed_due)
        if turn <= now + horizon and held < RESERVATIONS_MAX:
            if spacing > 0:
                self._backlog = (turn - now) / spacing + self.redeemed_share
            found = signature(attempt)
            insort(self._due.setdefault(found, []), due)
            insort(self._order, (due, found))
        return due

    def _drain(self, spacing: float, now: float) -> None:
        """The backlog is kept in requests and not as an instant. When the fleet becomes faster, the
        next client is therefore not sent behind reservations that were made at the old rate."""
        if spacing > 0:
            self._backlog = max(0.0, self._backlog - (now - self._backlog_at) / spacing)
        self._backlog_at = now

    def redeem(self, attempt: Attempt, now: float) -> bool:
        """Whether this request has a reservation that is due. It is used up."""
        self._expire(now)
        found = signature(attempt)
        dues = self._due.get(found)
        if dues is None or now < dues[0] - self._early:
            return False
        del self._order[bisect_left(self._order, (dues[0], found))]
        insort(self._redeemed_due, dues[0])
        self._forget_first(found)
        return True

    @property
    def redeemed_share(self) -> float:
        """The share of the reservations that are redeemed."""
        return self._redeemed / self._over

    def expected(self, now: float, horizon: float = math.inf) -> QueueAhead:
        """The requests that will likely come back within `return_horizon_ms`, or within `horizon`
        seconds if that is less: the mean and one standard deviation, since of a few reservations
        the number that is redeemed varies much."""
        self._expire(now)
        if not self._order:
            return QueueAhead()
        start = bisect_left(self._order, now - self._late, key=_due_at)
        end = bisect_right(self._order, now + min(horizon, self._horizon), key=_due_at)
        due = self._order[start:end]
        prompt = sum(found[2] for _, found in due)
        total = prompt + sum(found[3] for _, found in due)
        likely = len(due) * self.redeemed_share
        share = min(1.0, self.redeemed_share + math.sqrt(likely) / max(1, len(due)))
        return QueueAhead().plus(QueueAhead(len(due), prompt, total), share)

    def _expire(self, now: float) -> None:
        over = now - self._grace
        while self._order and self._order[0][0] <= over:
            self._forget_first(self._order.pop(0)[1])
            self._learn(redeemed=False)
        while self._redeemed_due and self._redeemed_due[0] <= over:
            del self._redeemed_due[0]
            self._learn(redeemed=True)

    def _forget_first(self, found: Signature) -> None:
        dues = self._due[found]
        del dues[0]
        if not dues:
            del self._due[found]

    def _learn(self, *, redeemed: bool) -> None:
        self._over = self._over * self._decay + 1.0
        self._redeemed = self._redeemed * self._decay + (1.0 if redeemed else 0.0)

    def check_invariants(self) -> None:
        assert sum(len(dues) for dues in self._due.values()) == len(self._order)
        assert len(self._order) + len(self._redeemed_due) <= RESERVATIONS_MAX
        assert self._order == sorted(self._order)
        assert self._redeemed_due == sorted(self._redeemed_due)
        assert 0.0 <= self.redeemed_share <= 1.0


def _due_at(entry: tuple[float, Signature]) -> float:
    return entry[0]


def _whole_seconds(due: float, now: float) -> float:
    return now + math.ceil(due - now - CLOCK_ERROR_SECONDS)
