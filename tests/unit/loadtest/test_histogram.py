"""Quantiles of any number of latencies in fixed memory, within a quarter of a percent."""

import random

import pytest

from loadtest.histogram import Histogram


def test_quantiles_are_within_a_quarter_percent() -> None:
    dice = random.Random(1)
    values = [dice.lognormvariate(3, 2) for _ in range(20_000)]
    histogram = Histogram()
    for value in values:
        histogram.add(value)
    ordered = sorted(values)
    for share in (0.5, 0.9, 0.99, 0.999):
        exact = ordered[max(0, -(-int(share * 1e6) * len(values) // 1_000_000) - 1)]
        assert histogram.quantile(share) == pytest.approx(exact, rel=0.003)
    assert histogram.most == ordered[-1]
    assert histogram.mean == pytest.approx(sum(values) / len(values))


def test_one_value_is_exact_and_none_is_zero() -> None:
    histogram = Histogram()
    assert histogram.quantile(0.5) == 0.0
    histogram.add(17.3)
    assert histogram.quantile(0.01) == histogram.quantile(0.99) == 17.3


def test_what_is_out_of_range_is_kept_at_the_ends() -> None:
    histogram = Histogram()
    for value in (0.0, -1.0, 1e12):
        histogram.add(value)
    assert histogram.count == 3
    assert histogram.quantile(1.0) <= 1e12
