"""Warm decode workers under every fault: they sleep, are woken and sleep again, no request is given
to one that sleeps, and every promise holds."""

from __future__ import annotations

import pytest

from services.router.fleet import warm_workers
from services.router.records.worker import Worker
from tests.simulation.mutants import planted
from tests.simulation.world.clock import PromiseBrokenError
from tests.simulation.world.world import World

SEEDS = range(700, 724)


def run_all() -> list[World]:
    worlds = [World(seed, models=("model", "other"), warm=True) for seed in SEEDS]
    for world in worlds:
        world.run()
    return worlds


@pytest.mark.timeout(300)
def test_every_promise_holds_and_they_sleep_and_wake_often() -> None:
    tallies = [world.fleet.tally for world in run_all()]
    assert sum(tally.woken for tally in tallies) > len(SEEDS)
    assert sum(tally.slept for tally in tallies) > len(SEEDS) / 2


@pytest.mark.timeout(300)
def test_a_request_that_is_given_to_one_that_sleeps_is_noticed() -> None:
    with planted(Worker, "asleep", False), pytest.raises(PromiseBrokenError):
        run_all()


@pytest.mark.timeout(300)
def test_one_that_is_never_woken_is_noticed() -> None:
    with planted(warm_workers, "choose", lambda *_, **__: None):
        assert sum(world.fleet.tally.woken for world in run_all()) == 0
