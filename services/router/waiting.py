"""The one queue: bounded by count and bytes; classes by priority, fair between tenants inside one.

A higher class goes first, save that each lower class is owed `floor` of what is served while it
waits, and goes first once it is owed the cost of its first request. Inside a class see
`admission/fair_class.py`. The last `reserve` of the queue is for tenants that hold less of it than
their share, and never for the lowest class, so that a flood of one cannot shut out the others.

A request that does not fit now lets up to `look_past - 1` behind it be tried, so that one large
prompt does not block small ones; a request passed by `passed_max` times is passed no more, so that
it is not starved either. With `count_max` 0 one request may be in it while it is being placed, no
longer.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator
from itertools import islice

from common.config import AdmissionConfig
from common.messages import PriorityClass
from services.router.admission.fair_class import Ahead, FairClass
from services.router.records import Key, Try

CLASSES = tuple(PriorityClass)
LOWER = tuple(reversed(CLASSES[1:]))


class Waiting:
    """`bytes_held`: the sum of the bodies in it. `config`: `class_floor`, `queue_reserve`,
    `look_past`, `passed_max`."""

    def __init__(self, count_max: int, bytes_max: int, config: AdmissionConfig) -> None:
        self._count_max = count_max
        self._bytes_max = bytes_max
        self._floor = config.class_floor
        self._reserve = config.queue_reserve
        self._passed_max = config.passed_max
        self.look_past = config.look_past
        self._tries: OrderedDict[Key, Try] = OrderedDict()
        self._classes = tuple(FairClass() for _ in CLASSES)
        self._owed = [0.0 for _ in CLASSES]
        self.bytes_held = 0

    def bound(self, count_max: int, bytes_max: int) -> None:
        """New bounds; the caller removes what is over them."""
        self._count_max, self._bytes_max = count_max, bytes_max

    def within_bounds(self) -> bool:
        return len(self._tries) <= self._count_max and self.bytes_held <= self._bytes_max

    def __len__(self) -> int:
        return len(self._tries)

    def __iter__(self) -> Iterator[Try]:
        """In order of arrival."""
        return iter(self._tries.values())

    def __contains__(self, key: Key) -> bool:
        return key in self._tries

    def has_room(self, body_bytes: int) -> bool:
        room = self.bytes_held + body_bytes <= self._bytes_max
        return room and len(self._tries) < max(1, self._count_max)

    def may_use_reserve(self, each: Try) -> bool:
        """Whether there is room for it without the reserve, or it is entitled to that."""
        reserved = int(self._count_max * self._reserve)
        bytes_max = self._bytes_max - int(self._bytes_max * self._reserve)
        few = len(self._tries) < max(1, self._count_max - reserved)
        if few and self.bytes_held + len(each.body) <= bytes_max:
            return True
        kind = self._classes[each.priority]
        share = kind.share(each.tenant, each.weight) * max(1, self._count_max)
        return each.priority is not CLASSES[-1] and kind.queued(each.tenant) < share

    def append(self, each: Try) -> None:
        self._tries[each.key] = each
        self.bytes_held += len(each.body)
        self._classes[each.priority].append(each)

    def remove(self, each: Try) -> None:
        """It leaves without being served."""
        self._drop(each)
        self._classes[each.priority].remove(each)
        self._forgive(each.priority)

    def serve(self, each: Try) -> None:
        """It leaves because it is placed."""
        self._drop(each)
        self._classes[each.priority].serve(each)
        self._owed[each.priority] = max(0.0, self._owed[each.priority] - each.cost)
        for lower in CLASSES[each.priority + 1 :]:
            if len(self._classes[lower]):
                due = self._classes[lower].first().cost
                owed = self._owed[lower] + each.cost * self._floor / (1.0 - self._floor)
                self._owed[lower] = min(due, owed)
        self._forgive(each.priority)

    def settle(self, each: Try, cost: float) -> None:
        """A served try cost this much more than predicted."""
        self._classes[each.priority].settle(each.tenant, cost)

    def head(self) -> Try:
        """The one that is served next."""
        return self._next_class().first()

    def window(self) -> Iterator[Try]:
        """Those that may be tried now, in order. The queue must not change meanwhile."""
        for each in islice(self.in_order(), self.look_past):
            yield each
            if each.passed_by >= self._passed_max:
                return

    def ahead(self, each: Try) -> Ahead:
        """What will be served before this newcomer, of what waits now."""
        ahead = self._classes[each.priority].ahead(each.tenant, each.weight, each.cost)
        for higher in self._classes[: each.priority]:
            ahead = ahead.plus(higher.backlog.ahead())
        return ahead

    def counters(self) -> dict[str, dict[str, float]]:
        """Virtual token counters of the tenants that wait, by class."""
        return {
            kind.name.lower(): self._classes[kind].counters()
            for kind in CLASSES
            if len(self._classes[kind])
        }

    def owed(self) -> dict[str, float]:
        """What lower classes are owed, in cost."""
        return {kind.name.lower(): self._owed[kind] for kind in CLASSES if self._owed[kind] > 0}

    def _drop(self, each: Try) -> None:
        del self._tries[each.key]
        self.bytes_held -= len(each.body)

    def _forgive(self, kind: PriorityClass) -> None:
        """A class with nobody waiting is owed nothing."""
        if not len(self._classes[kind]):
            self._owed[kind] = 0.0

    def in_order(self) -> Iterator[Try]:
        """All, as they would be served now. The queue must not change meanwhile."""
        if not self._tries:
            return
        favoured = self._next_class()
        yield favoured.first()
        for waiting in self._classes:
            if len(waiting):
                yield from islice(waiting.in_order(), 1 if waiting is favoured else 0, None)

    def _next_class(self) -> FairClass:
        """The lowest that is owed the cost of its first request, else the highest that waits."""
        for kind in LOWER:
            if self._owed[kind] > 0 and self._owed[kind] >= self._classes[kind].first().cost:
                return self._classes[kind]
        for waiting in self._classes:
            if waiting.backlog.requests:
                return waiting
        raise IndexError("the queue is empty")

    def check_invariants(self) -> None:
        assert self.within_bounds()
        assert self.bytes_held == sum(len(each.body) for each in self._tries.values())
        assert len(self._tries) == sum(len(waiting) for waiting in self._classes)
        for kind, waiting in zip(CLASSES, self._classes, strict=True):
            waiting.check_invariants()
            assert self._owed[kind] == 0 or len(waiting)
            assert sum(1 for _ in waiting.in_order()) == len(waiting)
