"""The controller of roles on a day in virtual time: it follows a load that changes, and leaves one
that does not alone. `make bench ARGS=balance` measures the same on a larger fleet."""

from __future__ import annotations

from functools import cache
from statistics import fmean

import pytest

from loadtest.capacity.day import Day
from loadtest.capacity.fleet import Fleet, Scenario
from tests.bench.balance import PROFILE, SLO, Case, Played, played

DAY = Day(PROFILE, workers=5, seconds=1_800.0)
LONG_SECONDS = 120


@cache
def follows() -> Played:
    return played(Case("on", DAY, DAY.ideal(0.0), LONG_SECONDS))


@pytest.mark.timeout(300)
def test_it_goes_all_the_way_and_back_and_changes_one_a_minute_at_most() -> None:
    splits = [prefills for _, prefills in follows().splits]
    assert splits[0] == 4
    assert min(splits) == 1
    assert splits[-1] >= 3
    assert follows().closest >= 60.0
    assert follows().switches <= 8


@pytest.mark.timeout(300)
@pytest.mark.parametrize("load", [0.7, 1.0, 1.3])
def test_a_load_that_stays_changes_nothing_in_an_hour(load: float) -> None:
    day = Day(PROFILE, workers=4, seconds=3_600.0, load=load, ratio=1.0)
    assert played(Case("steady", day, 2, LONG_SECONDS)).switches == 0


def test_a_day_asks_for_the_same_work_all_the_time_and_shifts_it() -> None:
    for share in (0.2, 0.5, 0.8):
        shape = DAY.shape(share)
        prefill = 1 / PROFILE.prefill_capacity(1, shape.prompt)
        decode = shape.output / (PROFILE.max_num_seqs / PROFILE.step_seconds(PROFILE.max_num_seqs))
        assert prefill == pytest.approx(DAY.work * share, rel=0.01)
        assert decode == pytest.approx(DAY.work * (1 - share), rel=0.01)
        room = 0.95 * PROFILE.kv_blocks * PROFILE.block_tokens
        assert PROFILE.max_num_seqs * (shape.prompt + 2 * shape.output) < room
    assert DAY.prefill_share(0.0) == pytest.approx(0.8)
    assert DAY.prefill_share(900.0) == pytest.approx(0.2)
    assert [DAY.ideal(at) for at in (0.0, 900.0, 1_800.0)] == [4, 1, 4]


@pytest.mark.parametrize("kinds", [False, True])
def test_arrivals_are_as_many_as_asked_for_and_shift(kinds: bool) -> None:
    day = DAY._replace(kinds=kinds)
    arrivals = list(day.arrivals(1))
    assert len(arrivals) == pytest.approx(day.rate * day.seconds, rel=0.06)
    assert arrivals == sorted(arrivals, key=lambda arrival: arrival.at)
    for low, high, share in ((0.0, 180.0, 0.8), (810.0, 990.0, 0.2)):
        prompts = [a.prompt for a in arrivals if low <= a.at < high]
        assert fmean(prompts) == pytest.approx(day.shape(share).prompt, rel=0.2)


def test_the_clairvoyant_changes_one_worker_at_a_time() -> None:
    counts = [DAY.ideal(0.0), *(prefills for _, prefills in DAY.orders())]
    assert counts == [4, 3, 2, 1, 2, 3, 4]


def test_a_worker_changes_its_role_and_serves_on_in_it() -> None:
    """Orders as somebody gives them who knows the load. Nothing moves here: what runs on a worker
    that is to change, which may be half a minute, is waited for."""
    day = DAY._replace(seconds=120.0, ratio=1.0, load=0.4)
    fleet = Fleet(
        Scenario(
            profile=PROFILE,
            prefills=2,
            decodes=3,
            arrivals=day.arrivals(1),
            seconds=120.0,
            slo=SLO,
            roles=True,
            orders=[(10.0, 3), (70.0, 2)],
        )
    )
    report = fleet.run()
    assert [prefills for _, prefills in fleet.splits] == [2, 3, 2]
    assert report.ended == report.requests
    fleet.core.check_invariants()
    assert sum("has become" in sentence for _, sentence in fleet.told) == 2
