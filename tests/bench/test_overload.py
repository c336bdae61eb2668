"""What the overload bench counts as good, refused and broken."""

from __future__ import annotations

from typing import Any

import pytest

from loadtest.bench.sample import Sample
from loadtest.capacity.report import Slo
from tests.bench.overload import verdict

SLO = Slo(ttft_ms=1000.0)


def tried(due: float, status: int, first: float | None = None, **more: Any) -> Sample:
    """A try of which the first token came `first` seconds after it was due."""
    made = None if first is None else due + first
    return Sample("x", 8, 8, due, sent=due, status=status, first=made, last=made, **more)


def test_only_what_began_in_time_and_ended_is_good() -> None:
    samples = [
        tried(1.0, 200, 0.5, done=2.0),
        tried(1.0, 200, 1.5, done=3.0),
        tried(1.0, 200, 0.5),
        tried(1.0, 429, error="refused 429", retry_after=2.0),
        tried(1.0, 503, error="refused 503"),
        tried(1.0, 0, error="cut"),
    ]
    samples[4].last = 1.02
    found = verdict(samples, SLO, 0.0, 2.0)
    assert (found.tries, found.broken, found.without_wait) == (6, 2, 1)
    assert found.good_per_s == 0.5
    assert found.attainment == pytest.approx(1 / 3)
    assert found.refused_ms.count == 1
    assert found.refused_ms.max == pytest.approx(20.0)
    assert found.next_try is None


def test_only_the_time_after_settling_counts_save_for_second_tries() -> None:
    samples = [
        tried(0.5, 200, 0.1, done=0.7),
        tried(1.5, 200, 0.1, done=1.7),
        tried(9.0, 200, 0.1, done=9.2, again=True),
        tried(9.0, 503, again=True),
    ]
    found = verdict(samples, SLO, 1.0, 2.0)
    assert (found.tries, found.good_per_s, found.next_try) == (1, 1.0, 0.5)
