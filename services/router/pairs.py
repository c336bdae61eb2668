"""Which prefill and decode worker may hand KV over to each other: a breaker for each pair.

    closed ──trouble──▶ open ──time over, a request takes it──▶ half-open ──KV came──▶ closed
                          ▲                                         │
                          └──────────trouble, or no verdict─────────┘

A digest that does not match opens at once: KV of this pair cannot be trusted. Transfers that fail
may have many causes, so `STRIKES` of them within `WINDOW_SECONDS` open. An open pair is not used
for `BACKOFF_SECONDS` · 2^n, at most `BACKOFF_SECONDS_MAX`, n counting the openings since the last
KV that came; then one request tries it. A pair is one of incarnations: a restarted worker is a new
one. Only pairs that had trouble are in the table, bounded, the longest quiet forgotten first.
"""

from __future__ import annotations

import enum
from collections import OrderedDict
from dataclasses import dataclass, field

STRIKES = 3
WINDOW_SECONDS = 60.0
BACKOFF_SECONDS = 5.0
BACKOFF_SECONDS_MAX = 300.0
PAIRS_MAX = 4_096
DIGEST = "digest"

Name = tuple[str, str]
Key = tuple[str, int]


class PairState(enum.Enum):
    CLOSED = "closed"
    OPEN = "open"
    HALF_OPEN = "half-open"


@dataclass(slots=True)
class Pair:
    """`strikes`: instants of transfers that failed. `until`: when an open one may be tried.
    `trial`: the request that tries it. `blamed`: the last request counted, so that two reports of
    one handoff are one strike."""

    name: Name
    since: float
    state: PairState = PairState.CLOSED
    strikes: list[float] = field(default_factory=list)
    openings: int = 0
    until: float = 0.0
    trial: Key | None = None
    blamed: Key | None = None
    kind: str = ""
    message: str = ""


class Pairs:
    """Pairs are named by the identities of P and D."""

    def __init__(self) -> None:
        self._pairs: OrderedDict[Name, Pair] = OrderedDict()
        self._barred: frozenset[Name] = frozenset()
        self._next_due = float("inf")
        self._stale = False

    def __len__(self) -> int:
        return len(self._pairs)

    def trouble(self, name: Name, key: Key, kind: str, message: str, now: float) -> Pair | None:
        """A handoff failed. The pair, if that opened it."""
        pair = self._pairs.get(name)
        if pair is None:
            pair = self._pairs[name] = Pair(name, now)
            if len(self._pairs) > PAIRS_MAX:
                self._pairs.popitem(last=False)
        elif pair.blamed == key:
            return None
        self._pairs.move_to_end(name)
        pair.blamed, pair.kind, pair.message = key, kind, message
        if pair.state is PairState.OPEN:
            return None
        pair.strikes = [at for at in pair.strikes if now - at < WINDOW_SECONDS] + [now]
        trial = pair.state is PairState.HALF_OPEN
        if not trial and kind != DIGEST and len(pair.strikes) < STRIKES:
            return None
        self._open(pair, now)
        return pair

    def came(self, name: Name, now: float) -> Pair | None:
        """KV came over. The pair, if that closed it."""
        pair = self._pairs.get(name)
        if pair is None or pair.state is PairState.OPEN:
            return None
        was = pair.state
        if was is PairState.CLOSED:
            return None
        pair.state, pair.since, pair.trial, pair.openings = PairState.CLOSED, now, None, 0
        pair.strikes.clear()
        self._stale = True
        return pair

    def placed(self, name: Name, key: Key, now: float) -> None:
        """A request takes this pair; of an open one, as its trial."""
        pair = self._pairs.get(name)
        if pair is not None and pair.state is PairState.OPEN:
            pair.state, pair.since, pair.trial = PairState.HALF_OPEN, now, key
            self._stale = True

    def over(self, name: Name, key: Key, now: float) -> None:
        """The request is over; a trial without a verdict leaves its place to the next."""
        pair = self._pairs.get(name)
        if pair is not None and pair.state is PairState.HALF_OPEN and pair.trial == key:
            pair.state, pair.since, pair.trial, pair.until = PairState.OPEN, now, None, now
            self._stale = True

    def barred(self, now: float) -> frozenset[Name]:
        """Those that must not be used now."""
        if self._stale or now >= self._next_due:
            rest = [
                pair
                for pair in self._pairs.values()
                if pair.state is PairState.HALF_OPEN
                or (pair.state is PairState.OPEN and now < pair.until)
            ]
            due = [pair.until for pair in rest if pair.state is PairState.OPEN]
            self._barred = frozenset(pair.name for pair in rest)
            self._next_due = min(due, default=float("inf"))
            self._stale = False
        return self._barred

    def rows(self) -> list[Pair]:
        """For operators; those in trouble longest first."""
        return sorted(self._pairs.values(), key=lambda pair: (pair.since, pair.name))

    def resting(self) -> int:
        """Open or on trial."""
        return sum(pair.state is not PairState.CLOSED for pair in self._pairs.values())

    def clear(self, prefill: str = "", decode: str = "") -> list[Pair]:
        """Forgets pairs of these workers (names or identities; empty = all), as an operator wants.
        Returns them."""
        gone = [
            pair
            for pair in self._pairs.values()
            if _is(pair.name[0], prefill) and _is(pair.name[1], decode)
        ]
        for pair in gone:
            del self._pairs[pair.name]
        self._stale = True
        return gone

    def _open(self, pair: Pair, now: float) -> None:
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


def _is(identity: str, asked: str) -> bool:
    return not asked or asked in (identity, identity.rpartition("|")[0])
