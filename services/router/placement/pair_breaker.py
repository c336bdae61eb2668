"""A circuit breaker for each pair of a prefill and a decode worker: may they hand KV over?

    closed ──failure──▶ open ──time over, a request takes it──▶ half-open ──KV came──▶ closed
                          ▲                                         │
                          └──────────failure, or no verdict─────────┘

A digest that does not match opens a breaker at once: KV of this pair cannot be trusted. A transfer
may fail for many reasons, so only `STRIKES` of them within `WINDOW_SECONDS` open it. An open pair
is not used for `BACKOFF_SECONDS` · 2^n, at most `BACKOFF_SECONDS_MAX`, where n counts the openings
since the last successful handoff; then one request tries the pair. A pair belongs to two
incarnations: a restarted worker forms a new pair. The table holds only pairs that failed. It is
bounded, and the pair whose last failure is oldest is forgotten first.
"""

from __future__ import annotations

import enum
from collections import OrderedDict
from dataclasses import dataclass, field

from common.identity import AttemptKey, name_of

STRIKES = 3
WINDOW_SECONDS = 60.0
BACKOFF_SECONDS = 5.0
BACKOFF_SECONDS_MAX = 300.0
PAIRS_MAX = 4_096
DIGEST = "digest"

PairName = tuple[str, str]
"""(identity of P, identity of D)."""


class PairState(enum.Enum):
    CLOSED = "closed"
    OPEN = "open"
    HALF_OPEN = "half-open"


@dataclass(slots=True)
class PairBreaker:
    """The breaker of one pair."""

    name: PairName
    #: When it entered its state.
    since: float
    state: PairState = PairState.CLOSED
    #: Instants of the failed transfers that count.
    strikes: list[float] = field(default_factory=list)
    #: Openings since the last successful handoff.
    openings: int = 0
    #: While open: from when on a request may try the pair.
    until: float = 0.0
    #: While half-open: the attempt that tries the pair.
    trial: AttemptKey | None = None
    #: The last attempt whose failure was counted; a second report of it is not a second strike.
    last_failed: AttemptKey | None = None
    #: Kind and message of the last failure.
    kind: str = ""
    message: str = ""


class PairBreakers:
    """The breakers of all pairs that failed."""

    def __init__(self) -> None:
        self._pairs: OrderedDict[PairName, PairBreaker] = OrderedDict()
        self._excluded: frozenset[PairName] = frozenset()
        self._next_due = float("inf")
        self._stale = False

    def __len__(self) -> int:
        return len(self._pairs)

    def record_failure(
        self, name: PairName, key: AttemptKey, kind: str, message: str, now: float
    ) -> PairBreaker | None:
        """A handoff failed. Returns the breaker if that opened it."""
        pair = self._pairs.get(name)
        if pair is None:
            pair = self._pairs[name] = PairBreaker(name, now)
            if len(self._pairs) > PAIRS_MAX:
                self._pairs.popitem(last=False)
        elif pair.last_failed == key:
            return None
        self._pairs.move_to_end(name)
        pair.last_failed, pair.kind, pair.message = key, kind, message
        if pair.state is PairState.OPEN:
            return None
        pair.strikes = [at for at in pair.strikes if now - at < WINDOW_SECONDS] + [now]
        trial = pair.state is PairState.HALF_OPEN
        if not trial and kind != DIGEST and len(pair.strikes) < STRIKES:
            return None
        self._open(pair, now)
        return pair

    def record_success(self, name: PairName, now: float) -> PairBreaker | None:
        """A handoff succeeded. Returns the breaker if that closed it."""
        pair = self._pairs.get(name)
        if pair is None or pair.state is not PairState.HALF_OPEN:
            return None
        pair.state, pair.since, pair.trial, pair.openings = PairState.CLOSED, now, None, 0
        pair.strikes.clear()
        self._stale = True
        return pair

    def start_trial(self, name: PairName, key: AttemptKey, now: float) -> None:
        """An attempt was placed on this pair; if the pair is open, the attempt is its trial."""
        pair = self._pairs.get(name)
        if pair is not None and pair.state is PairState.OPEN:
            pair.state, pair.since, pair.trial = PairState.HALF_OPEN, now, key
            self._stale = True

    def end_trial(self, name: PairName, key: AttemptKey, now: float) -> None:
        """The attempt is over. A trial without a verdict lets the next one try at once."""
        pair = self._pairs.get(name)
        if pair is not None and pair.state is PairState.HALF_OPEN and pair.trial == key:
            pair.state, pair.since, pair.trial, pair.until = PairState.OPEN, now, None, now
            self._stale = True

    def refresh_excluded(self, now: float) -> frozenset[PairName]:
        """The pairs that must not be used now. The set is kept and remade only when it is stale."""
        if self._stale or now >= self._next_due:
            excluded = [
                pair
                for pair in self._pairs.values()
                if pair.state is PairState.HALF_OPEN
                or (pair.state is PairState.OPEN and now < pair.until)
            ]
            due = [pair.until for pair in excluded if pair.state is PairState.OPEN]
            self._excluded = frozenset(pair.name for pair in excluded)
            self._next_due = min(due, default=float("inf"))
            self._stale = False
        return self._excluded

    def rows(self) -> list[PairBreaker]:
        """All breakers for an operator, the longest in its state first."""
        return sorted(self._pairs.values(), key=lambda pair: (pair.since, pair.name))

    def open_count(self) -> int:
        """Breakers that are open or half-open."""
        return sum(pair.state is not PairState.CLOSED for pair in self._pairs.values())

    def clear(self, prefill: str = "", decode: str = "") -> list[PairBreaker]:
        """Forgets the pairs of these workers (names or identities; empty = all), on an operator's
        order. Returns the forgotten ones."""
        cleared = [
            pair
            for pair in self._pairs.values()
            if _matches(pair.name[0], prefill) and _matches(pair.name[1], decode)
        ]
        for pair in cleared:
            del self._pairs[pair.name]
        self._stale = True
        return cleared

    def _open(self, pair: PairBreaker, now: float) -> None:
        wait = min(BACKOFF_SECONDS_MAX, BACKOFF_SECONDS * 2.0 ** min(pair.openings, 16))
        pair.state, pair.since, pair.trial = PairState.OPEN, now, None
        pair.until = now + wait
        pair.openings += 1
        pair.strikes.clear()
        self._stale = True

    def check_invariants(self) -> None:
        """Raises AssertionError."""
        assert len(self._pairs) <= PAIRS_MAX
        for name, pair in self._pairs.items():
            assert name == pair.name
            assert (pair.trial is not None) == (pair.state is PairState.HALF_OPEN)
            assert len(pair.strikes) <= STRIKES


def _matches(identity: str, wanted: str) -> bool:
    return not wanted or wanted in (identity, name_of(identity))
