"""Ratios that know how sure they are, and the sentence that follows from them: the tests that start
something."""

from __future__ import annotations

from loadtest import provenance
from loadtest.capacity.report import Slo
from loadtest.crossover.measure import CrossoverPlan, RequestLengths
from loadtest.crossover.outcome import (
    Crossover,
    all_ratios,
    lines,
    partial,
    sentences,
)
from tests.unit.loadtest.crossover.test_crossover import cell


def test_what_was_stopped_early_says_so_before_its_figures() -> None:
    cells = [cell(fleet, 1, 0, 1.0) for fleet in ("single", "replicated", "disaggregated")]
    course = CrossoverPlan([RequestLengths(10, 5)], [1, 2], 3, 8, Slo(), 1, 9.0)
    told = Crossover(
        provenance=provenance.collect(), command="", workers="2 workers", engine="vLLM",
        metric="tokens", slo="none", cells=cells, ratios=all_ratios(cells),
        sentences=sentences(cells, "tokens"), failed="",
        partial=partial(len(cells), 3 * course.runs),
    )  # fmt: skip
    first, second = list(lines(told))[:2]
    assert first == "PARTIAL: 3 of 18 runs"
    assert second.startswith("10 in, 5 out; 2 workers")
    assert partial(18, 18) == ""
