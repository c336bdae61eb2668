"""Changes of role with a fault in each of their phases, ordered by operators and by the controllers
of routers that die meanwhile: every promise holds, and a controller never orders what it must not.
"""

from __future__ import annotations

from collections import Counter
from itertools import product

import pytest

from services.router.fleet.balance.controller import Balance
from services.router.rules import measure, operator
from tests.simulation.mutants import planted
from tests.simulation.world.clock import PromiseBrokenError
from tests.simulation.world.switches import FAULTS, Phase
from tests.simulation.world.world import Outcome, World

SEEDS = range(4 * len(Phase) * len(FAULTS) // 2)


def run_all() -> list[Outcome]:
    return [World(seed, switches=True).run() for seed in SEEDS]


@pytest.mark.timeout(300)
def test_every_promise_holds_whatever_happens_in_whichever_phase() -> None:
    outcomes = run_all()
    struck = sum((Counter(outcome.struck) for outcome in outcomes), Counter[str]())
    assert set(struck) == {f"{fault} at {phase}" for phase, fault in product(Phase, FAULTS)}
    assert sum(outcome.balanced for outcome in outcomes) > len(SEEDS) / 2


@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    ("owner", "name", "replacement"),
    [
        (measure, "_changing", lambda tables: ""),
        (Balance, "_too_soon", lambda balance, now: ""),
        (operator, "why_no_role", lambda tables, worker, role, now: ""),
    ],
    ids=["two at once", "too soon", "the last, or during a rollout"],
)
def test_an_order_that_must_not_be_given_is_noticed(
    owner: object, name: str, replacement: object
) -> None:
    with planted(owner, name, replacement), pytest.raises((PromiseBrokenError, AssertionError)):
        run_all()
