"""The decaying ratio, and the ratios by size."""

import pytest

from services.router.estimates.by_size import SIZES, BySize
from services.router.estimates.ratio import Ratio


def test_a_ratio_is_of_sums_not_of_ratios() -> None:
    ratio = Ratio(1000)
    ratio.add(1000, 10)
    ratio.add(1, 1)
    assert ratio.value(0.0) == pytest.approx(1001 / 11, rel=0.01)


def test_a_ratio_without_samples_or_without_time_is_the_default() -> None:
    ratio = Ratio(10)
    assert ratio.value(7.0) == 7.0
    ratio.add(5, 0)
    assert ratio.value(7.0) == 7.0


def test_what_changed_is_learned_within_the_memory() -> None:
    ratio = Ratio(20)
    for _ in range(100):
        ratio.add(10, 1)
    for _ in range(60):
        ratio.add(50, 1)
    assert ratio.value(0.0) == pytest.approx(48, abs=2)


def test_a_size_without_samples_answers_as_its_nearest_neighbour() -> None:
    table = BySize(10, prior=0.5)
    assert table.value(100) == 0.5
    table.add(100, 10, 1)
    table.add(10_000, 30, 1)
    assert table.value(1) == table.value(128) == table.value(400) == 10
    assert table.value(5_000) == table.value(1 << 40) == 30
    assert table.known() == {64: 10, 8192: 30}


def test_any_size_has_a_row() -> None:
    table = BySize(10, prior=1.0)
    for size in (-1, 0, 1, 1 << 23, 1 << 60):
        table.add(size, 1, 1)
    assert len(table.known()) <= SIZES
