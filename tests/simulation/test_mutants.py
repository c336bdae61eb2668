"""Each planted bug is found, by a promise that breaks, within a bounded number of seeds; the same
seeds are survived without it."""

from __future__ import annotations

import pytest

from tests.simulation.campaign import Sums, play, play_one
from tests.simulation.mutants import MUTANTS, planted

SEEDS = 400
#: These are played first: together they notice almost all. What they miss, the others must find.
FIRST = (143, 9, 16, 68, 87, 96, 14, 34, 89, 6, 98)
ORDER = (*FIRST, *(seed for seed in range(SEEDS) if seed not in FIRST))


@pytest.mark.parametrize("name", MUTANTS)
@pytest.mark.timeout(240)
def test_each_mutant_is_killed(name: str) -> None:
    target, attribute, replacement = MUTANTS[name]
    with planted(target, attribute, replacement):
        for seed in ORDER:
            broken = play_one(seed, Sums())
            assert not broken.startswith("TypeError"), "the mutant is not called as the product is"
            if broken:
                print(f"seed {seed}: {broken}")
                break
        else:
            raise AssertionError(f"{SEEDS} seeds did not notice: {name}")
    assert not play(seed, 1).failures, "the seed fails without the mutant, too"
