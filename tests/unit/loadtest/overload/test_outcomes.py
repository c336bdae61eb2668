"""What is counted as good, refused and broken."""

import pytest

from loadtest.overload.offer import TryOutcome
from loadtest.overload.outcomes import quantile, summarise


def test_only_what_began_in_time_and_ended_is_good() -> None:
    outcomes = [
        TryOutcome(1.0, 200, first=0.5, done=2.0),
        TryOutcome(1.0, 200, first=1.5, done=2.0),
        TryOutcome(1.0, 200, first=0.5),
        TryOutcome(1.0, 429, "queue_full", refused_in=0.01, retry_after=2.0),
        TryOutcome(1.0, 503, "overloaded", refused_in=0.02),
        TryOutcome(1.0, 0, "ClientOSError"),
    ]
    verdict = summarise(outcomes, 1000.0, 0.0, 2.0)
    assert (verdict.tries, verdict.admitted, verdict.broken) == (6, 3, 2)
    assert verdict.good_per_s == 0.5
    assert verdict.attainment == pytest.approx(1 / 3)
    assert verdict.refused == {"queue_full": 1, "overloaded": 1}
    assert verdict.without_wait == 1
    assert verdict.refused_p99_ms == pytest.approx(20.0)
    assert verdict.next_try is None


def test_only_the_time_after_settling_counts_save_for_second_tries() -> None:
    outcomes = [
        TryOutcome(0.5, 200, first=0.1, done=0.2),
        TryOutcome(1.5, 200, first=0.1, done=0.2),
        TryOutcome(9.0, 200, first=0.1, done=0.2, again=True),
        TryOutcome(9.0, 503, again=True),
    ]
    verdict = summarise(outcomes, 1000.0, 1.0, 2.0)
    assert (verdict.tries, verdict.good_per_s, verdict.next_try) == (1, 1.0, 0.5)


def test_quantiles_of_few_and_of_none() -> None:
    assert quantile([], 0.99) == 0.0
    assert quantile([3.0, 1.0, 2.0], 0.5) == 2.0
    assert quantile([3.0, 1.0, 2.0], 0.99) == 3.0
