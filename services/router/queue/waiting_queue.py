"""The one queue: bounded by count and bytes, with priority classes that are fair between tenants.

A higher class goes first. Each lower class that waits is owed the share `class_floor` of what is
served, and goes first once it is owed the cost of its first request. For the order inside a class
see `fair_class.py`. The last part of the queue (`queue_reserve`) is for tenants that hold less of
it than their share, and never for the lowest class, so that a flood of one tenant cannot shut out
the others. Attempts whose streams nobody reads go after all others; their tenants pay for them as
for any.

A request that does not fit now does not block the `look_past - 1` requests behind it, so that one
large prompt does not hold up small ones. A request that was passed `passed_max` times is not passed
again, so that it does not starve. With `count_max` 0 a request may be in the queue only while it is
being placed.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator
from itertools import islice

from common.config import AdmissionConfig
from common.identity import AttemptKey
from common.messages import PriorityClass
from services.router.queue.fair_class import FairClass, QueueAhead
from services.router.records.attempt import Attempt

CLASSES = tuple(PriorityClass)
LOWER = tuple(reversed(CLASSES[1:]))


class WaitingQueue:
    def __init__(self, count_max: int, bytes_max: int, config: AdmissionConfig) -> None:
        self._count_max = count_max
        self._bytes_max = bytes_max
        self._floor = config.class_floor
        self._reserve = config.queue_reserve
        self._passed_max = config.passed_max
        #: How many attempts placement may look at.
        self.look_past = config.look_past
        self._attempts: OrderedDict[AttemptKey, Attempt] = OrderedDict()
        self._classes = tuple(FairClass() for _ in CLASSES)
        #: Those whose streams nobody reads, of all classes. They go last.
        self._abandoned = FairClass()
        #: What each class is owed, in predicted cost.
        self._owed = [0.0 for _ in CLASSES]
        #: Sum of the encoded prompts in the queue.
        self.bytes_held = 0

    def set_bounds(self, count_max: int, bytes_max: int) -> None:
        """The caller removes what is over the new bounds."""
        self._count_max, self._bytes_max = count_max, bytes_max

    def within_bounds(self) -> bool:
        return len(self._attempts) <= self._count_max and self.bytes_held <= self._bytes_max

    def __len__(self) -> int:
        return len(self._attempts)

    def __iter__(self) -> Iterator[Attempt]:
        """In order of arrival."""
        return iter(self._attempts.values())

    def __contains__(self, key: AttemptKey) -> bool:
        return key in self._attempts

    def has_room(self, body_bytes: int) -> bool:
        room = self.bytes_held + body_bytes <= self._bytes_max
        return room and len(self._attempts) < max(1, self._count_max)

    def may_use_reserve(self, attempt: Attempt) -> bool:
        """Whether there is room without the reserve, or the reserve is open to this attempt."""
        reserved = int(self._count_max * self._reserve)
        bytes_max = self._bytes_max - int(self._bytes_max * self._reserve)
        few = len(self._attempts) < max(1, self._count_max - reserved)
        if few and self.bytes_held + len(attempt.body) <= bytes_max:
            return True
        kind = self._classes[attempt.priority]
        share = kind.share(attempt.tenant, attempt.weight) * max(1, self._count_max)
        return attempt.priority is not CLASSES[-1] and kind.queued(attempt.tenant) < share

    def append(self, attempt: Attempt) -> None:
        self._attempts[attempt.key] = attempt
        self.bytes_held += len(attempt.body)
        self._part(attempt).append(attempt)

    def remove(self, attempt: Attempt) -> None:
        """The attempt leaves without being placed."""
        self._drop(attempt)
        self._part(attempt).remove(attempt)
        self._clear_owed(attempt.priority)

    def serve(self, attempt: Attempt) -> None:
        """The attempt leaves because it is placed."""
        self._drop(attempt)
        if attempt.abandoned:
            self._abandoned.remove(attempt)
            self.settle(attempt, attempt.cost)
            return
        self._classes[attempt.priority].serve(attempt)
        self._owed[attempt.priority] = max(0.0, self._owed[attempt.priority] - attempt.cost)
        for lower in CLASSES[attempt.priority + 1 :]:
            if len(self._classes[lower]):
                due = self._classes[lower].first().cost
                owed = self._owed[lower] + attempt.cost * self._floor / (1.0 - self._floor)
                self._owed[lower] = min(due, owed)
        self._clear_owed(attempt.priority)

    def settle(self, attempt: Attempt, cost: float) -> None:
        """A placed attempt cost this much more than predicted; negative for less."""
        self._classes[attempt.priority].settle(attempt.tenant, cost)

    def head(self) -> Attempt:
        """The attempt that is served next; there must be one."""
        return self._next_class().first()

    def owes(self, kind: PriorityClass) -> bool:
        """Whether this class is served next although a higher one waits."""
        next_class = self._next_class()
        higher = any(waiting.backlog.requests for waiting in self._classes[:kind])
        return higher and next_class is self._classes[kind]

    def window(self) -> Iterator[Attempt]:
        """The attempts that may be placed now, in order. The queue must not change meanwhile."""
        for attempt in islice(self.in_order(), self.look_past):
            yield attempt
            if attempt.passed_by >= self._passed_max:
                return

    def ahead(self, attempt: Attempt) -> QueueAhead:
        """What will be served before this attempt, which is not queued yet."""
        ahead = self._classes[attempt.priority].ahead(attempt.tenant, attempt.weight, attempt.cost)
        for higher in self._classes[: attempt.priority]:
            ahead = ahead.plus(higher.backlog.ahead())
        return ahead

    def backlog(self) -> QueueAhead:
        """All that somebody waits for."""
        total = QueueAhead()
        for waiting in self._classes:
            total = total.plus(waiting.backlog.ahead())
        return total

    def counters(self) -> dict[str, dict[str, float]]:
        """The fairness counters of the tenants that wait, by class."""
        return {
            kind.name.lower(): self._classes[kind].counters()
            for kind in CLASSES
            if len(self._classes[kind])
        }

    def owed(self) -> dict[str, float]:
        """What each lower class is owed, in predicted cost."""
        return {kind.name.lower(): self._owed[kind] for kind in CLASSES if self._owed[kind] > 0}

    def _drop(self, attempt: Attempt) -> None:
        del self._attempts[attempt.key]
        self.bytes_held -= len(attempt.body)

    def _clear_owed(self, kind: PriorityClass) -> None:
        """An empty class is owed nothing."""
        if not len(self._classes[kind]):
            self._owed[kind] = 0.0

    def in_order(self) -> Iterator[Attempt]:
        """All attempts as they would be served now. The queue must not change meanwhile."""
        if not self._attempts:
            return
        next_class = self._next_class()
        yield next_class.first()
        for waiting in self._classes:
            if len(waiting):
                yield from islice(waiting.in_order(), 1 if waiting is next_class else 0, None)
        yield from islice(
            self._abandoned.in_order(), 1 if next_class is self._abandoned else 0, None
        )

    def _part(self, attempt: Attempt) -> FairClass:
        return self._abandoned if attempt.abandoned else self._classes[attempt.priority]

    def _next_class(self) -> FairClass:
        """The lowest class that is owed the cost of its first request, else the highest class."""
        for kind in LOWER:
            if self._owed[kind] > 0 and self._owed[kind] >= self._classes[kind].first().cost:
                return self._classes[kind]
        for waiting in self._classes:
            if waiting.backlog.requests:
                return waiting
        if len(self._abandoned):
            return self._abandoned
        raise IndexError("the queue is empty")

    def check_invariants(self) -> None:
        """Raises AssertionError."""
        assert self.within_bounds()
        assert self.bytes_held == sum([len(attempt.body) for attempt in self._attempts.values()])
        self._abandoned.check_invariants()
        requests = len(self._abandoned)
        for owed, waiting in zip(self._owed, self._classes, strict=True):
            waiting.check_invariants()
            requests += len(waiting)
            assert owed == 0 or len(waiting)
        assert len(self._attempts) == requests
