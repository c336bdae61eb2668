"""Phases have no gap and no overlap, in whatever order the words come."""

from __future__ import annotations

import itertools

import pytest

from services.gateway.api.responses import timings_object
from services.gateway.streams.answer import Usage
from services.gateway.streams.timing import Timing


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


def test_each_phase_ends_where_the_next_begins(clock: Clock) -> None:
    timing = Timing(clock)
    timing.opened(100.001)
    timing.placed(100.003)
    timing.spoke(100.007)
    clock.now = 100.015
    found = timing.phases()
    assert found == pytest.approx({"intake": 1, "queue": 2, "prefill": 4, "decode": 8})


def test_what_has_not_begun_has_no_time(clock: Clock) -> None:
    timing = Timing(clock)
    clock.now = 100.5
    assert timing.phases() == {"intake": pytest.approx(500)}
    timing.opened(100.5)
    clock.now = 101.0
    assert timing.phases() == pytest.approx({"intake": 500, "queue": 500})


def test_the_first_of_several_calls_counts(clock: Clock) -> None:
    timing = Timing(clock)
    for later in (0.0, 0.1):
        timing.opened(101.0 + later)
        timing.placed(102.0 + later)
        timing.spoke(103.0 + later)
    clock.now = 104.0
    assert list(timing.phases().values()) == pytest.approx([1000] * 4)


@pytest.mark.parametrize("order", list(itertools.permutations(["opened", "placed", "spoke"])))
def test_phases_sum_to_the_whole_in_any_order(clock: Clock, order: tuple[str, ...]) -> None:
    """Opened is first in truth; tokens and the word of where they come from may change places."""
    timing = Timing(clock)
    words = {"opened": timing.opened, "placed": timing.placed, "spoke": timing.spoke}
    for name in order:
        clock.now += 1.0
        words[name](clock.now)
    clock.now += 1.0
    assert sum(timing.phases().values()) == pytest.approx(4000)


def test_tokens_that_overtake_their_placement_had_no_prefill(clock: Clock) -> None:
    timing = Timing(clock)
    timing.opened(101.0)
    timing.spoke(102.0)
    timing.placed(102.5)
    clock.now = 103.0
    assert timing.phases() == pytest.approx(
        {"intake": 1000, "queue": 1000, "prefill": 0, "decode": 1000}
    )


def test_the_timings_of_an_answer(clock: Clock) -> None:
    timing = Timing(clock)
    timing.opened(100.001)
    timing.placed(100.003)
    timing.spoke(100.103)
    clock.now = 100.603
    assert timings_object(timing, Usage(prompt=300, completion=51, cached=100)) == {
        "intake_ms": 1.0,
        "queue_ms": 2.0,
        "prompt_ms": 100.0,
        "predicted_ms": 500.0,
        "total_ms": 603.0,
        "prompt_n": 200,
        "cache_n": 100,
        "predicted_n": 51,
        "prompt_per_second": 2000.0,
        "predicted_per_second": 100.0,
    }


def test_an_answer_without_tokens_has_no_rates() -> None:
    told = timings_object(Timing(), Usage(0, 0, 0))
    assert not any(told.values())
