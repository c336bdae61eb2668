"""Ratios that know how sure they are, and the sentence that follows from them."""

from __future__ import annotations

import math

import pytest

from loadtest.bench.figures import figures
from loadtest.bench.sample import Sample
from loadtest.capacity.report import Slo
from loadtest.crossover.command import main
from loadtest.crossover.measure import Cell, RequestLengths, turned
from loadtest.crossover.outcome import (
    ratios,
    sentences,
)
from loadtest.crossover.ratio import Ratio, ratio
from loadtest.crossover.recommendation import sentence
from loadtest.histogram import Histogram

UP, DOWN, SAME = Ratio(1.5, 1.2, 1.9), Ratio(0.7, 0.6, 0.8), Ratio(1.0, 0.8, 1.2)


def test_a_ratio_is_paired_and_has_a_confidence() -> None:
    """Both fleets met the same slow minute: the ratio does not move, however the values do."""
    steady = ratio([20, 2, 11], [10, 1, 5.5])
    assert (steady.value, steady.low, steady.high) == pytest.approx((2, 2, 2))
    loose = ratio([20, 10, 15], [10, 10, 10])
    logs = [math.log(2), 0, math.log(1.5)]
    mean = sum(logs) / 3
    half = 4.303 * math.sqrt(sum((x - mean) ** 2 for x in logs) / 2) / math.sqrt(3)
    assert loose.value == pytest.approx(math.exp(mean))
    assert (loose.low, loose.high) == pytest.approx((math.exp(mean - half), math.exp(mean + half)))
    assert (steady.sign, loose.sign, ratio([1, 1], [2, 2]).sign) == (1, 0, -1)


def test_one_repeat_shows_nothing_and_nothing_good_is_a_defeat() -> None:
    assert ratio([9], [1]).sign == 0
    assert ratio([0, 0], [0, 0]) == Ratio(1, 1, 1)
    assert ratio([0, 0], [3, 4]).sign == -1
    assert ratio([3, 4], [0, 0]).sign == 1


@pytest.mark.parametrize(
    ("ratios_", "begins"),
    [
        ({1: DOWN, 4: SAME, 8: UP, 16: UP}, "Stay replicated below 8 concurrent requests; disagg"),
        ({1: UP, 4: UP, 8: SAME}, "Disaggregate up to 4 concurrent requests (1.50 times"),
        ({1: UP, 4: UP}, "Disaggregate: it paid at all of 1 to 4 concurrent requests"),
        ({1: SAME, 4: SAME}, "Stay replicated: no difference could be shown at 1 to 4"),
        ({1: SAME, 4: DOWN}, "Stay replicated: disaggregation never paid at 1 to 4"),
        ({1: DOWN, 4: UP, 8: UP, 16: SAME}, "Disaggregate between 4 and 8 concurrent requests"),
        ({1: UP, 4: DOWN, 8: UP}, "No clear line: disaggregation paid at 1, 8 concurrent"),
    ],
)
def test_the_verdict_is_one_sentence(ratios_: dict[int, Ratio], begins: str) -> None:
    told = sentence(ratios_)
    assert told.startswith(begins)
    assert told.endswith(".")


def cell(fleet: str, concurrency: int, repeat: int, seconds: float) -> Cell:
    sample = Sample("", 10, 5, 0.0, sent=0.0, first=0.1, last=seconds, done=seconds, chunks=5)
    told = figures([sample], Histogram(), Slo(), exact_prompts=True)
    return Cell(
        fleet=fleet,
        shape=RequestLengths(10, 5),
        concurrency=concurrency,
        repeat=repeat,
        figures=told,
    )


def test_cells_of_one_repeat_are_paired_and_half_a_pair_counts_for_nothing() -> None:
    cells = [cell("single", 1, 0, 9.0)]
    for repeat, seconds in enumerate((1.0, 4.0)):
        cells.append(cell("replicated", 1, repeat, seconds))
        cells.append(cell("disaggregated", 1, repeat, seconds / 2))
    cells.append(cell("replicated", 2, 0, 1.0))
    ((concurrency, found),) = ratios(cells, RequestLengths(10, 5), "tokens")
    assert [concurrency, found.value, found.sign] == pytest.approx([1, 2, 1])
    assert sentences(cells, "tokens")["10 in, 5 out"].startswith("Disaggregate")


def test_each_repeat_begins_with_another_fleet() -> None:
    assert [turned(["a", "b", "c"], repeat)[0] for repeat in range(4)] == ["a", "b", "c", "a"]


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        (["--metric", "goodput"], "needs --slo"),
        (["--endpoint", "replicated=http://x"], "are both needed"),
        (["--workers", "1"], "two are the least"),
        (["--workers", "2", "--prefill", "2"], "one at least must decode"),
    ],
)
def test_a_comparison_that_cannot_be_made_is_refused(
    arguments: list[str], why: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(arguments) == 2
    assert why in capsys.readouterr().err
