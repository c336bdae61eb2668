"""API keys: buckets in cost and requests, concurrency, settlement, forgetting."""

import pytest

from common.messages import KeyLimits, OtherCell
from services.router.admission.keys import Denial, KeyAccounts, by_share


def keys(keys_max: int = 100, burst_ms: float = 60_000.0) -> KeyAccounts:
    return KeyAccounts(keys_max, burst_ms)


def ask(
    table: KeyAccounts, limits: KeyLimits, cost: float, now: float, key: str = "k"
) -> Denial | None:
    """Charges it if it is not denied."""
    denied = table.check(key, limits, cost, 2.0, now)
    if denied is None:
        table.charge(key, limits, cost, now)
    return denied


def test_requests_a_minute_with_the_wait_until_the_next() -> None:
    table, limits = keys(), KeyLimits(requests_per_min=60)
    assert [ask(table, limits, 1, 10.0) for _ in range(60)] == [None] * 60
    denied = ask(table, limits, 1, 10.0)
    assert denied is not None
    assert denied.retry_after == pytest.approx(1.0)
    assert "60 requests a minute" in denied.sentence
    assert ask(table, limits, 1, 10.0 + denied.retry_after) is None
    assert ask(table, limits, 1, 10.0 + denied.retry_after) is not None


def test_a_denied_request_costs_nothing() -> None:
    table, limits = keys(), KeyLimits(requests_per_min=60)
    for _ in range(60):
        ask(table, limits, 1, 10.0)
    for _ in range(500):
        ask(table, limits, 1, 10.0)
    assert ask(table, limits, 1, 11.01) is None


def test_tokens_a_minute_with_the_wait_until_there_is_enough() -> None:
    table, limits = keys(), KeyLimits(tokens_per_min=6000)
    assert ask(table, limits, 5900, 10.0) is None
    denied = ask(table, limits, 600, 10.0)
    assert denied is not None
    assert denied.retry_after == pytest.approx(5.0)
    assert ask(table, limits, 600, 14.9) is not None
    assert ask(table, limits, 600, 15.01) is None


def test_what_was_not_used_comes_back_and_what_was_used_more_is_owed() -> None:
    table, limits = keys(), KeyLimits(tokens_per_min=6000)
    ask(table, limits, 6000, 10.0)
    table.ended("k", -5000)
    assert ask(table, limits, 4900, 10.0) is None
    table.ended("k", 8000)
    denied = ask(table, limits, 100, 10.0)
    assert denied is not None
    assert denied.retry_after == pytest.approx(80.0)


def test_what_costs_more_than_a_full_bucket_is_admitted_by_a_full_one() -> None:
    table, limits = keys(burst_ms=10_000.0), KeyLimits(tokens_per_min=6000)
    assert ask(table, limits, 3000, 10.0) is None
    assert ask(table, limits, 3000, 20.0) is not None
    assert ask(table, limits, 3000, 40.01) is None


def test_idleness_saves_no_more_than_the_burst() -> None:
    table, limits = keys(burst_ms=10_000.0), KeyLimits(requests_per_min=60)
    ask(table, limits, 1, 10.0)
    assert [ask(table, limits, 1, 9000.0) for _ in range(10)] == [None] * 10
    assert ask(table, limits, 1, 9000.0) is not None


def test_concurrency_counts_until_the_end() -> None:
    table, limits = keys(), KeyLimits(concurrency=2)
    assert ask(table, limits, 1, 10.0) is None
    assert ask(table, limits, 1, 10.0) is None
    denied = ask(table, limits, 1, 10.0)
    assert denied is not None
    assert denied.retry_after == pytest.approx(1.0)
    table.ended("k", 0)
    assert ask(table, limits, 1, 10.0) is None


def test_keys_are_apart_and_no_limit_is_no_account() -> None:
    table, limits = keys(), KeyLimits(concurrency=1)
    assert ask(table, limits, 1, 10.0, "a") is None
    assert ask(table, limits, 1, 10.0, "b") is None
    assert ask(table, limits, 1, 10.0, "a") is not None
    assert table.check("c", None, 1e9, 1.0, 10.0) is None
    assert len(table) == 2


def test_a_limit_set_by_an_operator_is_in_force() -> None:
    table = keys()
    table.overrides["k"] = KeyLimits(concurrency=1)
    assert table.limits("k", KeyLimits(concurrency=5)) == KeyLimits(concurrency=1)
    assert table.limits("other", None) is None


def test_a_lowered_limit_is_in_force_at_once() -> None:
    table = keys()
    ask(table, KeyLimits(requests_per_min=600), 1, 10.0)
    for _ in range(10):
        assert ask(table, KeyLimits(requests_per_min=10), 1, 10.0) is None
    assert ask(table, KeyLimits(requests_per_min=10), 1, 10.0) is not None


def test_idle_keys_are_forgotten_and_live_ones_are_not() -> None:
    table, limits = keys(keys_max=3), KeyLimits(concurrency=1, requests_per_min=1)
    ask(table, limits, 1, 10.0, "live")
    for i in range(20):
        ask(table, limits, 1, 10.0, f"k{i}")
        table.ended(f"k{i}", 0)
    table.check_invariants(1)
    assert ask(table, limits, 1, 10.0, "live") is not None
    assert ask(table, limits, 1, 10.0, "k19") is not None
    assert ask(table, limits, 1, 10.0, "k0") is None


def taken_over(
    table: KeyAccounts, limits: KeyLimits, cost: float, now: float, seconds: float = 0.0
) -> int:
    """How many requests a key may begin at once that came from another cell `seconds` ago."""
    for times in range(1_000):
        table.take_over("k", limits, cost, seconds, now)
        if ask(table, limits, cost, now) is not None:
            return times
    raise AssertionError("it is never denied")


def test_a_key_from_another_cell_finds_a_twentieth_of_what_it_may_save_up() -> None:
    assert taken_over(keys(), KeyLimits(requests_per_min=200), 1, 10.0) == 10
    assert taken_over(keys(), KeyLimits(tokens_per_min=2_000), 10, 10.0) == 10
    assert taken_over(keys(), KeyLimits(requests_per_min=2, tokens_per_min=100), 90, 10.0) == 1


def test_and_what_it_can_have_saved_up_since() -> None:
    assert taken_over(keys(), KeyLimits(requests_per_min=200), 1, 10.0, 30.0) == 110
    assert taken_over(keys(), KeyLimits(tokens_per_min=2_000), 10, 10.0, 30.0) == 110
    assert taken_over(keys(), KeyLimits(requests_per_min=200), 1, 10.0, 90.0) == 200


def test_then_it_has_its_rate_there() -> None:
    table, limits = keys(), KeyLimits(requests_per_min=60)
    taken_over(table, limits, 1, 10.0)
    assert sum(ask(table, limits, 1, 10.0 + n / 10) is None for n in range(1, 601)) == 60


def test_what_it_had_saved_up_there_before_is_gone_and_what_it_owed_is_not() -> None:
    table, limits = keys(), KeyLimits(requests_per_min=60)
    assert ask(table, limits, 1, 10.0) is None
    assert taken_over(table, limits, 1, 10.0) == 3
    table, limits = keys(), KeyLimits(tokens_per_min=6_000)
    ask(table, limits, 6_000, 10.0)
    table.ended("k", 600)
    assert taken_over(table, limits, 1, 10.0) == 0


def test_a_key_without_limits_has_no_account() -> None:
    table = keys()
    table.take_over("free", None, 1, 0.0, 10.0)
    assert len(table) == 0


def test_requests_at_once_are_counted_over_both_cells_and_a_full_one_adds_few() -> None:
    table, limits = keys(), KeyLimits(concurrency=4)

    def may(other: OtherCell) -> bool:
        return table.check("k", limits, 1, 1.0, 10.0, other) is None

    assert may(OtherCell(live=3))
    assert not may(OtherCell(live=4))
    assert may(OtherCell(serves=True, live=3))
    table.charge("k", limits, 1, 10.0)
    assert not may(OtherCell(live=3))
    assert may(OtherCell(live=2))
    assert not may(OtherCell(serves=True, live=0)), "one in twenty, but one at least"


def test_a_share_of_the_limits() -> None:
    limits = KeyLimits(requests_per_min=240, tokens_per_min=6_000, concurrency=64, weight=2.0)
    shared = by_share(limits)
    assert (shared.requests_per_min, shared.tokens_per_min) == (12.0, 300.0)
    assert (shared.concurrency, shared.weight) == (64, 2.0)
    assert by_share(KeyLimits()) == KeyLimits()
