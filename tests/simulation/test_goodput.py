"""Honest overload: the production core keeps its goodput when asked for more than the fleet can do.

Goodput is in requests, and under load the short prompts are those whose first token still comes in
time, so it goes on rising beyond the capacity of the mean request: the peak may be at 4x.
"""

from __future__ import annotations

from functools import cache

import pytest

from loadtest.capacity.overload import Bound, OverloadFleet, overload
from loadtest.capacity.report import Report, Slo
from services.router.settings import Settings

SLO = Slo(ttft_ms=2_000.0, tpot_ms=100.0)
BENCHES: dict[Bound, OverloadFleet] = {
    "prefill": OverloadFleet(seconds=80.0, slo=SLO),
    "decode": OverloadFleet(seconds=15.0, slo=SLO),
}
BOUNDS: tuple[Bound, ...] = ("prefill", "decode")
both = pytest.mark.parametrize("bound", BOUNDS)


@cache
def asked(bound: Bound, times: float) -> Report:
    """Virtual time and a fixed seed: the same at each call."""
    return overload(times, bound, Settings(ttft_slo_ms=SLO.ttft_ms), BENCHES[bound])


@cache
def best_alone(bound: Bound) -> Report:
    """One worker of each role, so that no other has room when one is kept idle."""
    return overload(2.0, bound, Settings(ttft_slo_ms=SLO.ttft_ms), alone(bound))


def alone(bound: Bound) -> OverloadFleet:
    return BENCHES[bound]._replace(prefills=1, decodes=1)


def share_of_peak(bound: Bound, times: float) -> float:
    peak = max(asked(bound, n).goodput_rps for n in (1.0, 2.0, 3.0, 4.0))
    return asked(bound, times).goodput_rps / peak


@both
def test_goodput_stays_near_its_peak(bound: Bound) -> None:
    assert share_of_peak(bound, 2.0) >= 0.90
    assert share_of_peak(bound, 3.0) >= 0.85
    assert share_of_peak(bound, 4.0) >= 0.85


@both
def test_what_is_admitted_is_served_in_time(bound: Bound) -> None:
    twice = asked(bound, 2.0)
    assert twice.attainment >= 0.98
    assert twice.placed > 100
    assert asked(bound, 1.0).attainment >= 0.98


@both
def test_every_refusal_says_when_to_come_again(bound: Bound) -> None:
    for times in (2.0, 4.0):
        report = asked(bound, times)
        assert sum(report.refused.values()) > 100
        assert report.refused_without_wait == 0


@both
def test_who_obeys_is_admitted_at_the_next_try(bound: Bound) -> None:
    bench = BENCHES[bound]._replace(retries=1)
    report = overload(2.0, bound, Settings(ttft_slo_ms=SLO.ttft_ms), bench)
    assert report.next_try is not None
    assert report.next_try >= 0.80
    assert report.attainment >= 0.98
    assert report.refused_without_wait == 0


@pytest.mark.parametrize("times", [2.0, 4.0])
@pytest.mark.parametrize("obey", [0.1, 0.3])
@both
def test_room_kept_for_who_obeys_costs_little_where_few_do(
    bound: Bound, obey: float, times: float
) -> None:
    obedient = alone(bound)._replace(retries=1, obey=obey)
    report = overload(times, bound, Settings(ttft_slo_ms=SLO.ttft_ms), obedient)
    assert report.goodput_rps >= 0.90 * best_alone(bound).goodput_rps
    assert report.attainment >= 0.98
    assert report.next_try is not None
    assert report.next_try >= 0.80


def test_without_the_prediction_goodput_collapses() -> None:
    """That it stays is the work of admission, not of the model."""
    report = overload(2.0, "prefill", Settings(ttft_slo_ms=0.0), BENCHES["prefill"])
    assert report.goodput_rps < 0.3 * asked("prefill", 2.0).goodput_rps
