"""Prompts that kill workers: which requests were in flight at deaths, and which prompts are barred.

A request that was with `deaths_max` workers of one role when their processes died is likely what
killed them; one of each role is what a host that fails takes along.
Its prompt is refused for a while, whoever sends it, because a client that gets a 500 tries again.
A prompt is known by a digest that its gateway makes; no text is kept. Both tables are bounded, the
oldest row is forgotten first.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass, field

from common.messages import Role

BARRED_SECONDS = 300.0
SUSPECTS_MAX = 4_096
BARRED_MAX = 1_024


@dataclass(slots=True)
class Barred:
    """`until`: instant. `refused`: how often it came again."""

    digest: bytes
    request_id: str
    workers: tuple[str, ...]
    until: float
    refused: int = 0


@dataclass(slots=True)
class Poison:
    """`deaths_max`: a request may be in flight at fewer deaths than this."""

    deaths_max: int = 2
    _suspects: OrderedDict[tuple[Role, str], set[str]] = field(default_factory=OrderedDict)
    _barred: OrderedDict[bytes, Barred] = field(default_factory=OrderedDict)

    def died(
        self, suspect: tuple[Role, str], digest: bytes, worker: str, now: float
    ) -> Barred | None:
        """A worker (role, identity) died with this request (id). The row, if that bars its
        prompt."""
        workers = self._suspects.setdefault(suspect, set())
        workers.add(worker)
        if len(self._suspects) > SUSPECTS_MAX:
            self._suspects.popitem(last=False)
        if len(workers) < self.deaths_max or not digest or digest in self._barred:
            return None
        del self._suspects[suspect]
        row = Barred(digest, suspect[1], tuple(sorted(workers)), now + BARRED_SECONDS)
        self._barred[digest] = row
        if len(self._barred) > BARRED_MAX:
            self._barred.popitem(last=False)
        return row

    def barred(self, digest: bytes, now: float) -> Barred | None:
        """Its row, while it counts."""
        row = self._barred.get(digest)
        if row is not None and now >= row.until:
            del self._barred[digest]
            return None
        return row

    def rows(self, now: float) -> list[Barred]:
        """Those that count, oldest first."""
        return [row for row in self._barred.values() if now < row.until]

    def lift(self, digest: bytes | None) -> int:
        """Of this digest, or of all. How many there were."""
        chosen = [each for each in self._barred if digest in (None, each)]
        for each in chosen:
            del self._barred[each]
        return len(chosen)

    def check_invariants(self) -> None:
        """Raises AssertionError."""
        assert len(self._suspects) <= SUSPECTS_MAX
        assert len(self._barred) <= BARRED_MAX
