"""One priority class of the queue: fair between tenants by virtual token counters.

After Sheng et al., "Fairness in Serving Large Language Models" (OSDI 2024): each tenant's
counter grows by the cost of what it is served, divided by its weight; the tenant with the lowest
counter is served next. A tenant that becomes active is raised to the lowest counter of the active
ones, so that no tenant saves up credit by being idle. The cost is predicted when a request is
placed and corrected when it ends.

Later attempts go before all first ones, in order of arrival, because each was admitted and served
once, and its client waits in the middle of an answer. The retry budget bounds how many there are.

The active tenants are kept in one sorted list, so that serving costs O(log n) comparisons and one
short memory move. The counters of at most `IDLE_MAX` idle tenants are kept; a forgotten tenant
starts at the level to which it would be raised anyway.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import OrderedDict
from collections.abc import Iterator
from heapq import heappop, heappush
from typing import NamedTuple

from common.identity import AttemptKey
from services.router.records.attempt import Attempt

IDLE_MAX = 4_096


class QueueAhead(NamedTuple):
    """What will be served before a request; fractions come from shares of tenants."""

    requests: float = 0.0
    #: Tokens that have to be computed.
    prompt_tokens: float = 0.0
    #: Tokens of KV that will be needed.
    total_tokens: float = 0.0

    def plus(self, other: QueueAhead, share: float = 1.0) -> QueueAhead:
        return QueueAhead(
            self.requests + share * other.requests,
            self.prompt_tokens + share * other.prompt_tokens,
            self.total_tokens + share * other.total_tokens,
        )


class Backlog:
    """Sums over queued attempts; the cost is the predicted one."""

    __slots__ = ("cost", "prompt_tokens", "requests", "total_tokens")

    def __init__(self) -> None:
        self.requests = self.prompt_tokens = self.total_tokens = 0
        self.cost = 0.0

    def add(self, attempt: Attempt, sign: int = 1) -> None:
        self.requests += sign
        self.prompt_tokens += sign * attempt.request.prompt_tokens
        self.total_tokens += sign * attempt.request.total_tokens
        self.cost += sign * attempt.cost

    def ahead(self) -> QueueAhead:
        return QueueAhead(self.requests, self.prompt_tokens, self.total_tokens)


class _Tenant:
    __slots__ = ("attempts", "backlog", "counter", "name", "weight")

    def __init__(self, name: str, weight: float) -> None:
        self.name = name
        self.weight = weight
        self.counter = 0.0
        self.attempts: OrderedDict[AttemptKey, Attempt] = OrderedDict()
        self.backlog = Backlog()


class FairClass:
    def __init__(self) -> None:
        #: Of all tenants, later attempts included.
        self.backlog = Backlog()
        #: Tenants with queued first attempts, and tenants that had some, by name.
        self._active: dict[str, _Tenant] = {}
        self._idle: OrderedDict[str, _Tenant] = OrderedDict()
        #: Counters and names of the active tenants, sorted.
        self._order: list[tuple[float, str]] = []
        #: Sum of the weights of the active tenants.
        self._weights = 0.0
        #: The highest counter that was the lowest at a placement; a start for new tenants.
        self._level = 0.0
        #: Queued attempts after a request's first, in order of arrival.
        self._later: OrderedDict[AttemptKey, Attempt] = OrderedDict()
        self._later_backlog = Backlog()

    def __len__(self) -> int:
        return self.backlog.requests

    def append(self, attempt: Attempt) -> None:
        self.backlog.add(attempt)
        if attempt.number > 1:
            self._later[attempt.key] = attempt
            self._later_backlog.add(attempt)
            return
        tenant = self._active.get(attempt.tenant)
        if tenant is None:
            tenant = self._activate(attempt)
        elif tenant.weight != attempt.weight:
            self._weights += attempt.weight - tenant.weight
            tenant.weight = attempt.weight
        tenant.attempts[attempt.key] = attempt
        tenant.backlog.add(attempt)

    def remove(self, attempt: Attempt) -> None:
        """The attempt leaves without being placed."""
        self.backlog.add(attempt, -1)
        if attempt.number > 1:
            del self._later[attempt.key]
            self._later_backlog.add(attempt, -1)
            return
        tenant = self._active[attempt.tenant]
        del tenant.attempts[attempt.key]
        tenant.backlog.add(attempt, -1)
        if not tenant.attempts:
            self._deactivate(tenant)

    def serve(self, attempt: Attempt) -> None:
        """The attempt leaves because it is placed; its tenant pays the predicted cost."""
        if attempt.number > 1:
            self.remove(attempt)
            self.settle(attempt.tenant, attempt.cost)
            return
        tenant = self._active[attempt.tenant]
        self._level = max(self._level, min(tenant.counter, self._order[0][0]))
        self._pay(tenant, attempt.cost)
        self.remove(attempt)

    def settle(self, tenant_name: str, cost: float) -> None:
        """The tenant's request cost this much more than predicted; negative for less."""
        tenant = self._active.get(tenant_name) or self._idle.get(tenant_name)
        if tenant is not None:
            self._pay(tenant, cost)

    def first(self) -> Attempt:
        """The attempt that is served next; there must be one."""
        if self._later:
            return next(iter(self._later.values()))
        attempts = self._active[self._order[0][1]].attempts
        return next(iter(attempts.values()))

    def in_order(self) -> Iterator[Attempt]:
        """All queued attempts as they would be served. The class must not change meanwhile."""
        yield from self._later.values()
        heap: list[tuple[float, str, Iterator[Attempt], Attempt]] = []
        coming = 0
        while heap or coming < len(self._order):
            while coming < len(self._order) and (
                not heap or self._order[coming] < (heap[0][0], heap[0][1])
            ):
                counter, name = self._order[coming]
                attempts = iter(self._active[name].attempts.values())
                heappush(heap, (counter, name, attempts, next(attempts)))
                coming += 1
            counter, name, attempts, attempt = heappop(heap)
            yield attempt
            following = next(attempts, None)
            if following is not None:
                counter += attempt.cost / self._active[name].weight
                heappush(heap, (counter, name, attempts, following))

    def ahead(self, tenant_name: str, weight: float, cost: float) -> QueueAhead:
        """What this class serves before a new first attempt of that tenant: the later attempts, the
        tenant's own queued ones, and of the others what their weights give them in that time."""
        tenant, later = self._active.get(tenant_name), self._later_backlog
        own = tenant.backlog if tenant is not None else Backlog()
        before = own.ahead().plus(later.ahead())
        others = self.backlog.ahead().plus(before, -1.0)
        others_cost = self.backlog.cost - own.cost - later.cost
        if others.requests < 1 or others_cost <= 0:
            return before
        others_weight = self._weights - (tenant.weight if tenant is not None else 0.0)
        served = (own.cost + cost) / weight * others_weight
        return before.plus(others, min(1.0, served / others_cost))

    def queued(self, tenant_name: str) -> int:
        tenant = self._active.get(tenant_name)
        return len(tenant.attempts) if tenant is not None else 0

    def share(self, tenant_name: str, weight: float) -> float:
        """The share of this class that the tenant's weight gives it, itself counted as active."""
        tenant = self._active.get(tenant_name)
        own = tenant.weight if tenant is not None else 0.0
        return weight / (self._weights - own + weight)

    def counters(self) -> dict[str, float]:
        """The counters of the active tenants, lowest first."""
        return {name: counter for counter, name in self._order}

    def _activate(self, attempt: Attempt) -> _Tenant:
        tenant = self._idle.pop(attempt.tenant, None) or _Tenant(attempt.tenant, attempt.weight)
        tenant.weight = attempt.weight
        lowest = self._order[0][0] if self._order else self._level
        tenant.counter = max(tenant.counter, lowest)
        self._active[tenant.name] = tenant
        self._weights += tenant.weight
        insort(self._order, (tenant.counter, tenant.name))
        return tenant

    def _deactivate(self, tenant: _Tenant) -> None:
        del self._active[tenant.name]
        del self._order[bisect_left(self._order, (tenant.counter, tenant.name))]
        self._weights = self._weights - tenant.weight if self._active else 0.0
        self._idle[tenant.name] = tenant
        if len(self._idle) > IDLE_MAX:
            self._idle.popitem(last=False)

    def _pay(self, tenant: _Tenant, cost: float) -> None:
        active = tenant.name in self._active
        if active:
            del self._order[bisect_left(self._order, (tenant.counter, tenant.name))]
        tenant.counter += cost / tenant.weight
        if active:
            insort(self._order, (tenant.counter, tenant.name))

    def check_invariants(self) -> None:
        """Raises AssertionError."""
        assert len(self._idle) <= IDLE_MAX
        if not self._active and not self._later:
            assert not self._order
            assert self.backlog.requests == self.backlog.prompt_tokens == self._weights == 0
            return
        assert self._order == sorted((t.counter, t.name) for t in self._active.values())
        assert self._active.keys().isdisjoint(self._idle)
        attempts, weights = list(self._later.values()), 0.0
        assert all(attempt.number > 1 for attempt in attempts)
        for tenant in self._active.values():
            assert tenant.attempts
            assert tenant.weight > 0
            attempts += tenant.attempts.values()
            weights += tenant.weight
        assert self.backlog.requests == len(attempts)
        prompt_tokens = [attempt.request.prompt_tokens for attempt in attempts]
        assert self.backlog.prompt_tokens == sum(prompt_tokens)
        assert abs(self._weights - weights) < 1e-6 * max(1.0, self._weights)
        assert len(list(self.in_order())) == len(attempts)
