"""The budget of later attempts: its burst, its share, its slow refill."""

from __future__ import annotations

from services.router.admission.retry_budget import RetryBudget


def takes(budget: RetryBudget, now: float) -> int:
    count = 0
    while budget.take(0, now):
        count += 1
    return count


def test_quiet_times_save_nothing_up() -> None:
    budget = RetryBudget(share=0.5, burst=2.0)
    for _ in range(100):
        budget.first_attempt()
    assert takes(budget, 0.0) == 2


def test_time_refills_no_more_than_the_burst() -> None:
    budget = RetryBudget(share=0.5, burst=2.0, per_min=60.0)
    assert takes(budget, 0.0) == 2
    assert takes(budget, 1.0) == 1
    assert takes(budget, 1_000.0) == 2


def test_first_attempts_give_their_share() -> None:
    budget = RetryBudget(share=0.5, burst=2.0)
    takes(budget, 0.0)
    for _ in range(2):
        budget.first_attempt()
    assert takes(budget, 0.0) == 1
