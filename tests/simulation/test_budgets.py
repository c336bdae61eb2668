"""Worlds in which requests have KV budgets, streams are parked and load is evened out: every
promise holds, and each bug that is planted in that is found."""

from __future__ import annotations

import pytest

from tests.simulation.budget_mutants import MUTANTS
from tests.simulation.campaign import Sums, campaign, play, play_one
from tests.simulation.mutants import planted

SEEDS = 400
MUTANT_SEEDS = 200


@pytest.mark.timeout(600)
def test_every_promise_holds_with_budgets() -> None:
    sums = campaign(SEEDS, first=10_000, budgets=True)
    failures = "\n".join(f"seed {seed}: {sentence}" for seed, sentence in sums.failures[:20])
    assert not sums.failed, f"{sums.failed} of {SEEDS} seeds\n{failures}"
    for what in ("budget parked", "budget moved", "room parked", "rebalance moved"):
        assert sums.moved[what], sums.moved


@pytest.mark.parametrize("name", MUTANTS)
@pytest.mark.timeout(240)
def test_each_mutant_is_killed(name: str) -> None:
    target, attribute, replacement = MUTANTS[name]
    with planted(target, attribute, replacement):
        for seed in range(MUTANT_SEEDS):
            broken = play_one(seed, Sums(), budgets=True)
            assert not broken.startswith("TypeError"), "the mutant is not called as the product is"
            if broken:
                print(f"seed {seed}: {broken}")
                break
        else:
            raise AssertionError(f"{MUTANT_SEEDS} seeds did not notice: {name}")
    assert not play(seed, 1, budgets=True).failures, "the seed fails without the mutant, too"
