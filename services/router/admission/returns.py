"""Refused requests that were told when to come back.

`Retry-After` is an appointment: each refusal of an overloaded fleet is given the next time at which
the measured drain rate will have room, one after the other, and what keeps it finds that room kept:
a newcomer without an appointment is judged as if those who are due and will likely come were ahead
of it. How many come is measured, so that clients that never return cost nothing for long. A request
is known again by its key, its tenant, its sizes and its content.

The header has whole seconds, so an appointment is made for a whole number of them: who keeps it
comes then, to the round trip. Who is later is still let in, but no longer waited for.
"""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right, insort
from zlib import crc32

from common.config import AdmissionConfig
from services.router.admission.fair_class import Ahead
from services.router.records import Try

Mark = tuple[str, str, int, int, int]

BOOKED_MAX = 4_096
CLOCK_ERROR_SECONDS = 1e-6


def mark(each: Try) -> Mark:
    ask = each.ask
    return (each.key_id, each.tenant, ask.prompt_tokens, ask.max_tokens, crc32(each.body))


class Returns:
    """Appointments that were made and neither kept nor missed."""

    def __init__(self, config: AdmissionConfig) -> None:
        self._early = config.return_early_ms / 1000
        self._late = config.return_late_ms / 1000
        self._horizon = config.return_horizon_ms / 1000
        self._grace = config.return_grace_ms / 1000
        self._keep = 1.0 - 1.0 / config.estimate_memory
        self._kept, self._over = 1.0, 2.0
        self._due: dict[Mark, list[float]] = {}
        self._order: list[tuple[float, Mark]] = []
        self._backlog = 0.0
        self._backlog_at = 0.0

    def __len__(self) -> int:
        return len(self._order)

    def book(self, each: Try, earliest: float, spacing: float, now: float, horizon: float) -> float:
        """When to come back: whole seconds from now, not before `earliest`, and after those told
        before, of whom one is served every `spacing` seconds as far as is known now. Nothing is
        booked beyond `horizon` seconds, or when `BOOKED_MAX` are."""
        self._expire(now)
        self._drain(spacing, now)
        turn = max(earliest, now + self._backlog * spacing)
        due = _whole_seconds(min(turn, now + horizon), now)
        if turn <= now + horizon and len(self._order) < BOOKED_MAX:
            if spacing > 0:
                self._backlog = (turn - now) / spacing + self.share
            found = mark(each)
            insort(self._due.setdefault(found, []), due)
            insort(self._order, (due, found))
        return due

    def _drain(self, spacing: float, now: float) -> None:
        """The backlog is in requests, not an instant: when the fleet becomes faster, as a cold one
        does, who is told next is not sent behind appointments made at the old pace."""
        if spacing > 0:
            self._backlog = max(0.0, self._backlog - (now - self._backlog_at) / spacing)
        self._backlog_at = now

    def claim(self, each: Try, now: float) -> bool:
        """Whether this request comes by appointment, which it uses up."""
        if not self._order:
            return False
        self._expire(now)
        found = mark(each)
        dues = self._due.get(found)
        if dues is None or now < dues[0] - self._early:
            return False
        del self._order[bisect_left(self._order, (dues[0], found))]
        self._forget_first(found)
        self._learn(kept=True)
        return True

    @property
    def share(self) -> float:
        """Of the appointments, those that are kept."""
        return self._kept / self._over

    def expected(self, now: float, horizon: float = math.inf) -> Ahead:
        """Who will likely come by appointment within `return_horizon_ms`, or `horizon` seconds if
        that is less: as many as come on average, and one standard deviation more, for few are
        seldom as many as on average."""
        if not self._order:
            return Ahead()
        self._expire(now)
        start = bisect_left(self._order, now - self._late, key=_due_at)
        end = bisect_right(self._order, now + min(horizon, self._horizon), key=_due_at)
        due = self._order[start:end]
        prompt = sum(found[2] for _, found in due)
        total = prompt + sum(found[3] for _, found in due)
        likely = len(due) * self.share
        share = min(1.0, self.share + math.sqrt(likely) / max(1, len(due)))
        return Ahead().plus(Ahead(len(due), prompt, total), share)

    def _expire(self, now: float) -> None:
        late = bisect_right(self._order, now - self._grace, key=_due_at)
        for _, found in self._order[:late]:
            self._forget_first(found)
            self._learn(kept=False)
        del self._order[:late]

    def _forget_first(self, found: Mark) -> None:
        dues = self._due[found]
        del dues[0]
        if not dues:
            del self._due[found]

    def _learn(self, *, kept: bool) -> None:
        self._over = self._over * self._keep + 1.0
        self._kept = self._kept * self._keep + (1.0 if kept else 0.0)

    def check_invariants(self) -> None:
        assert sum(len(dues) for dues in self._due.values()) == len(self._order) <= BOOKED_MAX
        assert self._order == sorted(self._order)
        assert 0.0 <= self.share <= 1.0


def _due_at(entry: tuple[float, Mark]) -> float:
    return entry[0]


def _whole_seconds(due: float, now: float) -> float:
    return now + math.ceil(due - now - CLOCK_ERROR_SECONDS)
