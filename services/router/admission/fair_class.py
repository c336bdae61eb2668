"""One priority class of the queue: fair between tenants by virtual token counters.

After Sheng et al., "Fairness in Serving Large Language Models" (OSDI 2024): each tenant's
counter grows by the cost of what it is served, over its weight; the tenant with the lowest counter
is served next. A tenant that becomes active is lifted to the lowest counter of the active ones, so
that nobody saves up credit by being idle. The cost is predicted at service, settled at the end.

Later attempts go before all first ones, in order of arrival: each was admitted and served once, and
its client waits in the middle of an answer. The retry budget bounds how many there are.

Active tenants stand in one sorted list, so serving costs O(log n) comparisons and one short memory
move. Counters of up to `IDLE_MAX` idle tenants are kept; one that is forgotten starts at the level
that it would be lifted to anyway.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import OrderedDict
from collections.abc import Iterator
from heapq import heappop, heappush
from typing import NamedTuple

from services.router.records import Key, Try

IDLE_MAX = 4_096


class Ahead(NamedTuple):
    """What will be served before a request. `prompt_tokens` to compute, `total_tokens` of KV."""

    requests: float = 0.0
    prompt_tokens: float = 0.0
    total_tokens: float = 0.0

    def plus(self, other: Ahead, share: float = 1.0) -> Ahead:
        return Ahead(
            self.requests + share * other.requests,
            self.prompt_tokens + share * other.prompt_tokens,
            self.total_tokens + share * other.total_tokens,
        )


class Backlog:
    """Sums over queued tries."""

    __slots__ = ("cost", "prompt_tokens", "requests", "total_tokens")

    def __init__(self) -> None:
        self.requests = self.prompt_tokens = self.total_tokens = 0
        self.cost = 0.0

    def add(self, each: Try, sign: int = 1) -> None:
        self.requests += sign
        self.prompt_tokens += sign * each.ask.prompt_tokens
        self.total_tokens += sign * each.ask.total_tokens
        self.cost += sign * each.cost

    def ahead(self) -> Ahead:
        return Ahead(self.requests, self.prompt_tokens, self.total_tokens)


class _Tenant:
    __slots__ = ("backlog", "counter", "name", "tries", "weight")

    def __init__(self, name: str, weight: float) -> None:
        self.name = name
        self.weight = weight
        self.counter = 0.0
        self.tries: OrderedDict[Key, Try] = OrderedDict()
        self.backlog = Backlog()


class FairClass:
    """`backlog`: of all tenants."""

    def __init__(self) -> None:
        self.backlog = Backlog()
        self._active: dict[str, _Tenant] = {}
        self._idle: OrderedDict[str, _Tenant] = OrderedDict()
        self._order: list[tuple[float, str]] = []
        self._weights = 0.0
        self._level = 0.0
        self._later: OrderedDict[Key, Try] = OrderedDict()
        self._later_backlog = Backlog()

    def __len__(self) -> int:
        return self.backlog.requests

    def append(self, each: Try) -> None:
        self.backlog.add(each)
        if each.attempt > 1:
            self._later[each.key] = each
            self._later_backlog.add(each)
            return
        tenant = self._active.get(each.tenant)
        if tenant is None:
            tenant = self._activate(each)
        elif tenant.weight != each.weight:
            self._weights += each.weight - tenant.weight
            tenant.weight = each.weight
        tenant.tries[each.key] = each
        tenant.backlog.add(each)

    def remove(self, each: Try) -> None:
        """It leaves without being served."""
        self.backlog.add(each, -1)
        if each.attempt > 1:
            del self._later[each.key]
            self._later_backlog.add(each, -1)
            return
        tenant = self._active[each.tenant]
        del tenant.tries[each.key]
        tenant.backlog.add(each, -1)
        if not tenant.tries:
            self._deactivate(tenant)

    def serve(self, each: Try) -> None:
        """It leaves because it is placed; its tenant pays the predicted cost."""
        if each.attempt > 1:
            self.remove(each)
            self.settle(each.tenant, each.cost)
            return
        tenant = self._active[each.tenant]
        self._level = max(self._level, min(tenant.counter, self._order[0][0]))
        self._pay(tenant, each.cost)
        self.remove(each)

    def settle(self, tenant_name: str, cost: float) -> None:
        """Its real cost was this much more than predicted; negative for less."""
        tenant = self._active.get(tenant_name) or self._idle.get(tenant_name)
        if tenant is not None:
            self._pay(tenant, cost)

    def first(self) -> Try:
        """The one that is served next; there must be one."""
        if self._later:
            return next(iter(self._later.values()))
        tries = self._active[self._order[0][1]].tries
        return next(iter(tries.values()))

    def in_order(self) -> Iterator[Try]:
        """All queued tries as they would be served. The class must not change meanwhile."""
        yield from self._later.values()
        heap: list[tuple[float, str, Iterator[Try], Try]] = []
        coming = 0
        while heap or coming < len(self._order):
            while coming < len(self._order) and (
                not heap or self._order[coming] < (heap[0][0], heap[0][1])
            ):
                counter, name = self._order[coming]
                tries = iter(self._active[name].tries.values())
                heappush(heap, (counter, name, tries, next(tries)))
                coming += 1
            counter, name, tries, each = heappop(heap)
            yield each
            following = next(tries, None)
            if following is not None:
                counter += each.cost / self._active[name].weight
                heappush(heap, (counter, name, tries, following))

    def ahead(self, tenant_name: str, weight: float, cost: float) -> Ahead:
        """What this class serves before a first attempt of that tenant: later attempts, the
        tenant's own queue, and of the others what their weights give them meanwhile."""
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
        return len(tenant.tries) if tenant is not None else 0

    def share(self, tenant_name: str, weight: float) -> float:
        """Of this class that the tenant's weight gives it, with itself counted as active."""
        tenant = self._active.get(tenant_name)
        own = tenant.weight if tenant is not None else 0.0
        return weight / (self._weights - own + weight)

    def counters(self) -> dict[str, float]:
        """Of the active tenants, lowest first."""
        return {name: counter for counter, name in self._order}

    def _activate(self, each: Try) -> _Tenant:
        tenant = self._idle.pop(each.tenant, None) or _Tenant(each.tenant, each.weight)
        tenant.weight = each.weight
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
        assert len(self._idle) <= IDLE_MAX
        assert self._order == sorted((t.counter, t.name) for t in self._active.values())
        assert not self._active.keys() & self._idle.keys()
        tenants = self._active.values()
        assert all(t.tries and t.weight > 0 for t in tenants)
        tries = [*self._later.values(), *(each for t in tenants for each in t.tries.values())]
        assert self.backlog.requests == len(tries)
        assert all(each.attempt > 1 for each in self._later.values())
        assert self.backlog.prompt_tokens == sum(each.ask.prompt_tokens for each in tries)
        assert abs(self._weights - sum(t.weight for t in tenants)) < 1e-6 * max(1.0, self._weights)
