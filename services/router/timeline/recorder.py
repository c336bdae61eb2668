"""The flight recorder: which records are kept, and for how long: the latest of all requests, the
slowest 1 %, and every failure. All tables are bounded; the oldest entry is forgotten first."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import OrderedDict, defaultdict, deque
from collections.abc import Iterator
from itertools import chain
from typing import NamedTuple

from common.messages import RequestSummary
from common.telemetry.timeline import TimelineRecord
from services.router.timeline.traffic import Traffic

WINDOW = 1_000
SLOW_SHARE = 0.01
KEPT_MAX = 256
PENDING_MAX = 8_192
KINDS = ("slow", "failed", "refused")


def measures(record: TimelineRecord) -> dict[str, float]:
    """The values by which a request may be among the slowest; 0 = not measured."""
    return {"ttft_ms": record.ttft_ms, "tpot_ms": record.tpot_ms, "total_ms": record.total_ms}


class Slowest:
    """Tells whether a value is among the greatest `SLOW_SHARE` of the latest `WINDOW` values; while
    there are few, whether it is the greatest of them."""

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


class KeptRecord(NamedTuple):
    """A record that the recorder keeps."""

    record: TimelineRecord
    #: When it was recorded, on the core's clock.
    at: float
    #: The measures by which it is among the slowest.
    slow_by: tuple[str, ...]


class Recorder:
    """Collects what a record needs, and keeps the records that operators ask for."""

    def __init__(self, history: int) -> None:
        #: By request id, the summaries that gateways sent.
        self.summaries: OrderedDict[str, RequestSummary] = OrderedDict()
        #: By request id, when the record is due without a summary; an attempt of it is over.
        self.pending: OrderedDict[str, float] = OrderedDict()
        #: Records that were never made, because too many were pending.
        self.forgotten = 0
        self.kept: dict[str, deque[KeptRecord]] = {kind: deque(maxlen=KEPT_MAX) for kind in KINDS}
        self.recent: deque[KeptRecord] = deque(maxlen=KEPT_MAX)
        self.traffic = Traffic()
        #: The same by model; as many as the fleet file has.
        self._by_model: defaultdict[str, Traffic] = defaultdict(Traffic)
        self._history = history
        self._slowest: defaultdict[str, Slowest] = defaultdict(Slowest)

    def add_summary(self, summary: RequestSummary) -> None:
        self.summaries[summary.request_id] = summary
        self.summaries.move_to_end(summary.request_id)
        if len(self.summaries) > self._history:
            self.summaries.popitem(last=False)

    def schedule(self, request_id: str, due: float) -> None:
        """An attempt of this request ended, or its gateway sent the summary."""
        self.pending[request_id] = due
        if len(self.pending) > PENDING_MAX:
            self.pending.popitem(last=False)
            self.forgotten += 1

    def keep(self, record: TimelineRecord, now: float) -> None:
        self.traffic.add(record)
        self._by_model[record.model].add(record)
        slow_by: tuple[str, ...] = ()
        if record.outcome == "ended":
            values = measures(record).items()
            slow_by = tuple(name for name, ms in values if ms and self._slowest[name].add(ms))
        kept = KeptRecord(record, now, slow_by)
        self.recent.append(kept)
        if slow_by:
            self.kept["slow"].append(kept)
        elif record.outcome == "refused":
            self.kept["refused"].append(kept)
        elif record.outcome not in ("ended", "closed"):
            self.kept["failed"].append(kept)

    def traffic_of(self, model: str) -> Traffic:
        return self._by_model[model]

    def find(self, request_id: str) -> KeptRecord | None:
        """The latest record of this request that is still kept."""
        return next((kept for kept in self._all() if kept.record.request_id == request_id), None)

    def ids(self) -> set[str]:
        """Of all requests whose records are kept."""
        return {kept.record.request_id for kept in self._all()}

    def _all(self) -> Iterator[KeptRecord]:
        return chain(self.recent, *(self.kept[kind] for kind in KINDS))

    def check_invariants(self) -> None:
        """Raises AssertionError."""
        assert len(self.summaries) <= self._history
        assert len(self.pending) <= PENDING_MAX
