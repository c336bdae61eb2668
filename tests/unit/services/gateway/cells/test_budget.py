"""Refusals that are tried again are a share of all requests."""

from __future__ import annotations

from services.gateway.cells.budget import SPILLS_AT_ONCE, SpillBudget


def spilled(budget: SpillBudget, requests: int) -> int:
    times = 0
    for _ in range(requests):
        budget.opened()
        times += budget.take()
    return times


def test_of_requests_that_are_all_refused_a_share_is_tried_again() -> None:
    assert 509 <= spilled(SpillBudget(0.05), 10_000) <= 510


def test_a_quiet_time_saves_no_more_than_a_burst() -> None:
    budget = SpillBudget(0.5)
    for _ in range(1_000):
        budget.opened()
    assert sum(budget.take() for _ in range(100)) == SPILLS_AT_ONCE


def test_without_a_share_nothing_is_tried_again() -> None:
    assert spilled(SpillBudget(0.0), 1_000) == 0
