"""The length of a step by its streams, and the speed of each worker beside its fleet."""

from __future__ import annotations

import pytest

from services.router.estimates import worker_speeds
from services.router.estimates.step_rate import StepRate
from services.router.estimates.worker_speeds import TRUST_SAMPLES, WorkerSpeeds

PRIOR = 0.02


def measured(*points: tuple[int, float], worker: str = "d0", times: int = 1) -> StepRate:
    """Steps of so many streams, and their seconds."""
    rate = StepRate(64, PRIOR)
    for _ in range(times):
        for batch, seconds in points:
            rate.ended(worker, batch, 100, 100 * seconds)
    return rate


def test_before_anything_was_measured_all_steps_are_the_prior() -> None:
    assert [StepRate(64, PRIOR).seconds(batch) for batch in (1, 30)] == [PRIOR, PRIOR]


@pytest.mark.parametrize(
    ("batch", "seconds"), [(8, 0.060), (12, 0.070), (24, 0.100), (28, 0.110), (4, 0.050)]
)
def test_a_line_goes_through_what_was_measured_and_beyond(batch: int, seconds: float) -> None:
    """40 ms and 2.5 more for each stream."""
    assert measured((8, 0.060), (24, 0.100)).seconds(batch) == pytest.approx(seconds)


def test_from_one_batch_half_a_step_is_thought_to_depend_on_the_streams() -> None:
    rate = measured((32, 0.080))
    assert [rate.seconds(batch) for batch in (16, 32, 64)] == pytest.approx([0.060, 0.080, 0.080])


def test_a_step_of_fewer_streams_shrinks_in_proportion_at_most() -> None:
    rate = measured((8, 0.050), (16, 0.400))
    assert rate.seconds(4) == pytest.approx(0.025)


def test_a_longer_step_is_not_expected_of_fewer_streams() -> None:
    rate = measured((4, 0.050), (16, 0.040))
    assert rate.seconds(4) == rate.seconds(16) == pytest.approx(0.050)


@pytest.mark.parametrize(
    ("longest", "streams"), [(1.0, 32), (0.121, 32), (0.111, 28), (0.061, 8), (0.043, 1), (0.04, 0)]
)
def test_how_many_streams_hold_a_pace(longest: float, streams: int) -> None:
    """40 ms and 2.5 more for each stream."""
    assert measured((8, 0.060), (24, 0.100)).streams_within(longest, 32) == streams


def test_one_stream_more_than_was_measured_is_tried_where_all_of_it_was_in_time() -> None:
    jumps = measured((1, 0.020), (2, 0.040))
    assert jumps.seconds(3) == pytest.approx(0.060)
    assert jumps.streams_within(0.050, 32) == 3
    assert jumps.streams_within(0.050, 2) == 2
    assert jumps.streams_within(0.030, 32) == 1
    assert StepRate(64, PRIOR).streams_within(0.030, 32) == 32


def test_the_curve_is_of_those_that_are_left() -> None:
    """The slow ones are gone; one of which nothing is known is thought to be like the others."""
    rate = StepRate(16, PRIOR)
    for _ in range(100):
        for name, seconds in (("fast", 0.02), ("slow", 0.08)):
            rate.ended(name, 4, 100, 100 * seconds)
    for _ in range(200):
        rate.ended("fast", 4, 100, 100 * 0.02)
    assert rate.seconds(4) == pytest.approx(0.02, rel=0.05)
    assert rate.speeds.distinct("fast") == 1.0


def test_a_slower_worker_has_a_speed_and_the_curve_is_that_of_all() -> None:
    rate = StepRate(64, PRIOR)
    for _ in range(200):
        for batch in (4, 16):
            rate.ended("fast", batch, 100, 100 * (0.02 + 0.001 * batch))
            rate.ended("slow", batch, 100, 100 * (0.06 + 0.003 * batch))
    fast, slow = (rate.speeds.distinct(name) for name in ("fast", "slow"))
    assert fast / slow == pytest.approx(3.0, rel=0.05)
    for batch in (4, 10, 16):
        assert rate.seconds(batch) / fast == pytest.approx(0.02 + 0.001 * batch, rel=0.1)


def test_workers_that_have_unlike_loads_are_told_apart() -> None:
    """The slow one has few streams: its steps are as long as those of the other."""
    rate = StepRate(64, PRIOR)
    for _ in range(300):
        for batch in (24, 32):
            rate.ended("fast", batch, 100, 100 * (0.025 + 0.0005 * batch))
        for batch in (4, 24):
            rate.ended("slow", batch, 100, 100 * (0.050 + 0.001 * batch))
    assert rate.speeds.distinct("fast") / rate.speeds.distinct("slow") > 1.7


def test_a_speed_counts_once_it_is_measured_and_differs() -> None:
    speeds = WorkerSpeeds(64)
    for _ in range(TRUST_SAMPLES - 1):
        speeds.add("d0", 1.0, 2.0)
    assert speeds.distinct("d0") == 1.0
    speeds.add("d0", 1.0, 2.0)
    assert speeds.distinct("d0") == pytest.approx(0.5)
    for _ in range(TRUST_SAMPLES):
        speeds.add("d1", 1.1, 1.0)
        speeds.add("d2", 1.0, 1000.0)
    assert speeds.measured("d1") == pytest.approx(1.1)
    assert speeds.distinct("d1") == 1.0
    assert speeds.distinct("d2") == worker_speeds.SPEED_MIN
    assert speeds.distinct("unknown") == 1.0


def test_memory_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker_speeds, "WORKERS_MAX", 3)
    speeds = WorkerSpeeds(64)
    for number in range(9):
        speeds.add("kept", 1.0, 2.0)
        speeds.add(f"d{number}", 1.0, 1.0)
    assert len(speeds._ratios) == 3
    assert speeds.measured("kept") == pytest.approx(0.5)
