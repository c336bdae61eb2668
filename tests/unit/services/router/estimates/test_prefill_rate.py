"""Prefill seconds by length and worker: queueing left out, batches counted once."""

import pytest

from services.router.estimates import prefill_rate
from services.router.estimates.prefill_rate import PrefillRate
from services.router.estimates.worker_speeds import TRUST_SAMPLES


def rate_of(estimator: PrefillRate, tokens: int) -> float:
    return tokens / estimator.seconds(tokens)


def test_the_prior_holds_until_the_first_prompt() -> None:
    estimator = PrefillRate(64, 8000)
    assert estimator.seconds(800) == pytest.approx(0.1)
    estimator.ended("p0", 800, 0.2, 10.0)
    assert estimator.seconds(800) == pytest.approx(0.2)


def test_queueing_on_the_worker_is_not_prefill_time() -> None:
    """Ten prompts arrive at once, one after the other is computed in 0.1 s."""
    estimator = PrefillRate(64, 8000)
    for i in range(1, 11):
        estimator.ended("p0", 1000, 0.1 * i, 50 + 0.1 * i)
    assert rate_of(estimator, 1000) == pytest.approx(10_000)


def test_prompts_of_one_step_share_its_time() -> None:
    estimator = PrefillRate(64, 8000)
    for step in range(1, 10):
        for _ in range(4):
            estimator.ended("p0", 250, 0.1, 50 + 0.1 * step)
    assert rate_of(estimator, 250) == pytest.approx(10_000, rel=0.05)


def test_idle_time_between_prompts_is_not_prefill_time() -> None:
    estimator = PrefillRate(64, 8000)
    for i in range(10):
        estimator.ended("p0", 1000, 0.1, 50 + 7.0 * i)
    assert rate_of(estimator, 1000) == pytest.approx(10_000)


def test_long_prompts_may_be_slower_than_short_ones() -> None:
    estimator = PrefillRate(64, 8000)
    for i in range(10):
        estimator.ended("p0", 1000, 0.1, 50 + i)
        estimator.ended("p0", 32_000, 6.4, 60 + 10 * i)
    assert rate_of(estimator, 1000) > 1.9 * rate_of(estimator, 32_000)
    assert set(estimator.by_length()) == {512, 16_384}


def test_a_worker_of_another_pace_is_known_once_it_is_measured() -> None:
    estimator = PrefillRate(500, 8000)
    for i in range(TRUST_SAMPLES - 1):
        estimator.ended("slow", 1000, 0.3, 50 + i)
    assert estimator.speeds.measured("slow") == 1.0
    for i in range(200):
        for worker, seconds in (("slow", 0.3), ("fast", 0.1)):
            estimator.ended(worker, 1000, seconds, 100 + i)
    assert estimator.seconds(1000, "slow") > 2 * estimator.seconds(1000, "fast")
    assert estimator.speeds.measured("unknown") == 1.0


def test_cached_prompts_teach_nothing_and_memory_is_bounded(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(prefill_rate, "WORKERS_MAX", 3)
    estimator = PrefillRate(64, 8000)
    for i in range(10):
        estimator.ended(f"p{i}", 0, 0.1, 50 + i)
    assert estimator.count == 0
    assert len(estimator._ended) == 3
