"""Orders for workers with hooks that hang, lie, fail or answer twice, and with a fault in each
phase, the death of the router among them: a hook is called once a need, never two orders are open,
floors hold, and no worker stays drained for an order that is over."""

from __future__ import annotations

from collections import Counter
from itertools import product
from typing import Any

import pytest

from common.messages import KeptOrders
from services.router.fleet.scale.controller import Outcome
from services.router.records.gateway import Gateway
from services.router.rules import operator, scale
from services.router.tables import SharedTables, Tables
from tests.simulation.mutants import planted
from tests.simulation.world.clock import PromiseBrokenError
from tests.simulation.world.scaling import FAULTS, HABITS, ScalePhase
from tests.simulation.world.world import World

SEEDS = range(4 * len(ScalePhase) * len(FAULTS))
CLOSE = scale._close


def run_until_broken() -> None:
    for seed in range(4 * len(SEEDS)):
        World(seed, scaling=True).run()


def forgets(shared: SharedTables, gateway: Gateway, message: KeptOrders, now: float) -> list[Any]:
    """A router that does not take over the order of an earlier one."""
    gateway.kept_orders = {order.model: (order.id, order.asked) for order in message.orders}
    return []


def drains_for_ever(tables: Tables, outcome: Outcome, sentence: str, now: float) -> list[Any]:
    with planted(operator, "drain_worker", lambda tables, event: []):
        return CLOSE(tables, outcome, sentence, now)


@pytest.mark.timeout(300)
def test_every_promise_holds_whatever_a_hook_does_in_whichever_phase() -> None:
    struck, habits, orders = Counter[str](), Counter[str](), 0
    for seed in SEEDS:
        world = World(seed, scaling=True)
        outcome = world.run()
        struck.update(outcome.struck)
        orders += outcome.balanced
        assert world.fleet.hooks is not None
        habits.update(world.fleet.hooks.habits)
    pairs = set(product(ScalePhase, FAULTS)) - {(ScalePhase.OBEYED, "resume")}  # it has left
    assert set(struck) >= {f"{fault} at {phase}" for phase, fault in pairs}
    assert set(habits) == set(HABITS)
    assert orders > len(SEEDS)


@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    ("owner", "name", "replacement"),
    [
        (scale, "_confirmed", lambda tables, order: True),
        (scale, "on_kept", forgets),
        (scale, "_empty", lambda worker: True),
        (scale, "_why_it_stays", lambda tables, order, worker: ""),
        (scale, "_against", lambda tables, need, now: ""),
        (scale, "_close", drains_for_ever),
    ],
    ids=[
        "called before it is kept",
        "not taken over",
        "stopped with requests",
        "the last",
        "too soon, or during a rollout",
        "drained for ever",
    ],
)
def test_an_order_that_must_not_be_given_is_noticed(
    owner: object, name: str, replacement: object
) -> None:
    with planted(owner, name, replacement), pytest.raises((PromiseBrokenError, AssertionError)):
        run_until_broken()
