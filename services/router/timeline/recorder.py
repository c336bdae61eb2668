"""Which requests are remembered, and for how long: the latest of all, the slowest 1 % and every
failure. All tables are bounded, the oldest forgotten first."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import OrderedDict, deque
from typing import NamedTuple

from common.messages import Journey
from services.router.timeline.record import Record
from services.router.timeline.traffic import Traffic

WINDOW = 1_000
SLOW_SHARE = 0.01
KEPT_MAX = 256
PENDING_MAX = 8_192
MEASURES = ("ttft_ms", "tpot_ms", "total_ms")
KINDS = ("slow", "failed", "refused")


class Slowest:
    """Whether a value is among the greatest `SLOW_SHARE` of the latest `WINDOW`; while fewer were
    seen, whether it is the greatest of them."""

    def __init__(self) -> None:
        self._latest: deque[float] = deque()
        self._sorted: list[float] = []

    def add(self, value: float) -> bool:
        self._latest.append(value)
        insort(self._sorted, value)
        if len(self._latest) > WINDOW:
            del self._sorted[bisect_left(self._sorted, self._latest.popleft())]
        above = max(1, int(len(self._sorted) * SLOW_SHARE))
        return value >= self._sorted[-above]


class Kept(NamedTuple):
    """`at`: when it was recorded, on the core's clock. `slow_by`: the measures it is slow by."""

    record: Record
    at: float
    slow_by: tuple[str, ...]


class Recorder:
    """`journeys`: what gateways told, by request. `pending`: requests of which an attempt is over,
    and when their record is due if their gateway says nothing; `forgotten`: of too many."""

    def __init__(self, history: int) -> None:
        self.journeys: OrderedDict[str, Journey] = OrderedDict()
        self.pending: OrderedDict[str, float] = OrderedDict()
        self.kept: dict[str, deque[Kept]] = {kind: deque(maxlen=KEPT_MAX) for kind in KINDS}
        self.recent: deque[Kept] = deque(maxlen=KEPT_MAX)
        self.forgotten = 0
        self.traffic = Traffic()
        self._history = history
        self._slowest = {measure: Slowest() for measure in MEASURES}

    def told(self, journey: Journey) -> None:
        self.journeys[journey.request_id] = journey
        self.journeys.move_to_end(journey.request_id)
        if len(self.journeys) > self._history:
            self.journeys.popitem(last=False)

    def over(self, request_id: str, due: float) -> None:
        """An attempt of it ended, or its gateway told."""
        self.pending[request_id] = due
        if len(self.pending) > PENDING_MAX:
            self.pending.popitem(last=False)
            self.forgotten += 1

    def keep(self, made: Record, now: float) -> None:
        self.traffic.add(made)
        slow_by: tuple[str, ...] = ()
        if made["outcome"] == "ended":
            slow_by = tuple(m for m in MEASURES if made[m] and self._slowest[m].add(made[m]))
        kept = Kept(made, now, slow_by)
        self.recent.append(kept)
        if slow_by:
            self.kept["slow"].append(kept)
        elif made["outcome"] == "refused":
            self.kept["refused"].append(kept)
        elif made["outcome"] not in ("ended", "closed"):
            self.kept["failed"].append(kept)

    def find(self, request_id: str) -> Kept | None:
        """The latest record of it that is still kept."""
        for each in (*self.recent, *(kept for kind in KINDS for kept in self.kept[kind])):
            if each.record["request_id"] == request_id:
                return each
        return None

    def ids(self) -> set[str]:
        every = (*self.recent, *(kept for kind in KINDS for kept in self.kept[kind]))
        return {each.record["request_id"] for each in every}

    def check_invariants(self) -> None:
        """Raises AssertionError."""
        assert len(self.journeys) <= self._history
        assert len(self.pending) <= PENDING_MAX
