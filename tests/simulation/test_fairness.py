"""Tenants that always wait are served in proportion to their weights, within the bound of virtual
token counters (Sheng et al. 2024): over any time in which two of them wait, what they were served
differs by at most twice the largest request, each over its weight. Seeded; the production core; and
planted bugs that break it are found."""

from __future__ import annotations

import random
from dataclasses import dataclass, field

import pytest

from common.messages import Decode, KeyLimits, Submit
from services.router.queue.fair_class import FairClass
from tests.unit.services.router.rig import Rig

SEEDS = 60
SERVED = 160
OUT = 8
PROMPT_MAX = 200
QUEUED_EACH = 4
PAY, ACTIVATE = FairClass._pay, FairClass._activate


@dataclass
class Tenant:
    """`served`: cost, since the fight began."""

    name: str
    weight: float
    queued: int = 0
    served: float = 0.0


@dataclass
class Fight:
    """A few tenants that keep the queue full, on one decode worker; one of them joins late."""

    seed: int
    random: random.Random = field(init=False)
    rig: Rig = field(init=False)
    tenants: list[Tenant] = field(default_factory=list)
    costs: dict[str, tuple[Tenant, float]] = field(default_factory=dict)
    running: list[str] = field(default_factory=list)
    placed: int = 0

    def __post_init__(self) -> None:
        self.random = random.Random(self.seed)
        self.rig = Rig(max_queue=1_000)
        self.rig.gateway()
        self.rig.decode(seqs=4, blocks=200)

    def join(self) -> None:
        weight = self.random.choice([0.5, 1.0, 2.0, 4.0])
        self.tenants.append(Tenant(f"t{self.random.randrange(1000)}-{len(self.tenants)}", weight))

    def begin(self) -> None:
        """From here on all of them wait."""
        self.refill()
        for tenant in self.tenants:
            tenant.served = 0.0

    def refill(self) -> None:
        for tenant in self.tenants:
            while tenant.queued < QUEUED_EACH:
                self._submit(tenant)

    def finish_one(self) -> None:
        self.rig.now += 0.05
        name = self.running.pop(self.random.randrange(len(self.running)))
        self.rig.started(name, kv=None)
        self.rig.ended(name)
        self._look()

    def spread(self) -> float:
        shares = [tenant.served / tenant.weight for tenant in self.tenants]
        return max(shares) - min(shares)

    def bound(self) -> float:
        largest = max(cost for _, cost in self.costs.values())
        return 2 * largest / min(tenant.weight for tenant in self.tenants)

    def _submit(self, tenant: Tenant) -> None:
        name, prompt = f"r{len(self.costs)}", self.random.randint(17, PROMPT_MAX)
        self.costs[name] = (tenant, prompt + 2.0 * OUT)
        tenant.queued += 1
        limits = KeyLimits(weight=tenant.weight)
        message = Submit(
            request_id=name,
            attempt=1,
            prompt_tokens=prompt,
            max_tokens=OUT,
            tenant=tenant.name,
            limits=limits,
        )
        self.rig.receive("g0|1", message, name.encode())
        self._look()

    def _look(self) -> None:
        for decode in self.rig.take(Decode):
            tenant, cost = self.costs[decode.request_id]
            tenant.queued -= 1
            tenant.served += cost
            self.running.append(decode.request_id)
            self.placed += 1


def widest(seed: int) -> float:
    """The widest spread seen, in bounds: at most 1 if it is fair."""
    fight = Fight(seed)
    for _ in range(fight.random.randint(2, 5)):
        fight.join()
    fight.begin()
    joins_at = SERVED // 2
    worst = 0.0
    while fight.placed < SERVED:
        if joins_at and fight.placed >= joins_at:
            fight.join()
            fight.begin()
            joins_at = 0
        fight.finish_one()
        fight.refill()
        worst = max(worst, fight.spread() / fight.bound())
    return worst


@pytest.mark.parametrize("seed", range(SEEDS))
def test_the_fairness_bound_holds(seed: int) -> None:
    assert widest(seed) <= 1.0


def unweighted(self: FairClass, tenant: object, cost: float) -> None:
    PAY(self, tenant, cost * tenant.weight)  # type: ignore[arg-type,attr-defined]


def free(self: FairClass, tenant: object, cost: float) -> None:
    PAY(self, tenant, 0.0)  # type: ignore[arg-type]


def banked(self: FairClass, attempt: object) -> object:
    """A newcomer keeps its counter of 0 instead of the lowest of those who wait."""
    level, self._level = self._level, 0.0
    order, self._order = self._order, []
    tenant = ACTIVATE(self, attempt)  # type: ignore[arg-type]
    self._level, self._order = level, sorted([*order, *self._order])
    return tenant


@pytest.mark.parametrize(
    ("name", "planted"), [("_pay", unweighted), ("_pay", free), ("_activate", banked)]
)
def test_a_planted_bug_breaks_the_bound(
    monkeypatch: pytest.MonkeyPatch, name: str, planted: object
) -> None:
    monkeypatch.setattr(FairClass, name, planted)
    assert any(widest(seed) > 1.0 for seed in range(SEEDS))
