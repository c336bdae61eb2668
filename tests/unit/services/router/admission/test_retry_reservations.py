"""Retry reservations: spaced, recognized, expected, expired."""

from itertools import pairwise

import pytest

from common.config import AdmissionConfig
from services.router.admission import retry_reservations
from services.router.admission.retry_reservations import RetryReservations
from services.router.records.attempt import Attempt
from tests.unit.services.router.admission.attempts import queued

LATE_SECONDS = AdmissionConfig().return_late_ms / 1000


def reservations_of(grace: float, memory: int) -> RetryReservations:
    return RetryReservations(AdmissionConfig(return_grace_ms=grace * 1000, estimate_memory=memory))


def reserve(
    table: RetryReservations, attempt: Attempt, now: float, wait: float = 1.0, spacing: float = 0.5
) -> float:
    due = table.reserve(attempt, now + wait, spacing, now, 60.0)
    table.check_invariants()
    return due


def again(attempt: Attempt) -> Attempt:
    """The same request as its client sends it again: another id."""
    same = queued(attempt.tenant, prompt=attempt.request.prompt_tokens, body=attempt.body)
    assert same.key != attempt.key
    return same


def test_a_request_is_recognized_by_what_it_asks_and_only_in_its_time() -> None:
    table, attempt = reservations_of(2.0, 64), queued(body=b"one")
    due = reserve(table, attempt, 10.0)
    assert due == 11.0
    assert not table.redeem(again(attempt), 10.5)
    assert not table.redeem(queued(body=b"two"), 11.0)
    assert not table.redeem(queued("other", body=b"one"), 11.0)
    assert table.redeem(again(attempt), 11.0)
    assert not table.redeem(again(attempt), 11.0)
    table.check_invariants()


def test_a_reservation_that_is_not_redeemed_expires() -> None:
    table, attempt = reservations_of(2.0, 64), queued()
    reserve(table, attempt, 10.0)
    assert not table.redeem(again(attempt), 13.0)
    assert len(table) == 0


def test_reservations_follow_one_another_at_the_drain_rate() -> None:
    table = reservations_of(2.0, 64)
    dues = [reserve(table, queued(body=b"%d" % i), 10.0, spacing=2.0) for i in range(10)]
    gaps = [b - a for a, b in pairwise(dues)]
    assert gaps == pytest.approx([2.0 * table.redeemed_share] * 9)


def test_a_reservation_is_at_the_instant_that_a_header_in_whole_seconds_names() -> None:
    table, attempt = reservations_of(2.5, 64), queued()
    assert reserve(table, attempt, 10.25, wait=1.3) == 12.25
    assert not table.redeem(again(attempt), 11.55)
    assert table.redeem(again(attempt), 12.25)
    assert reserve(reservations_of(2.5, 64), attempt, 0.1, wait=1.0) == pytest.approx(1.1)


def test_spacing_is_not_lost_in_the_rounding() -> None:
    table = reservations_of(2.5, 64)
    dues = [reserve(table, queued(body=b"%d" % i), 10.0, spacing=0.4) for i in range(40)]
    assert dues[-1] == pytest.approx(10.0 + 1.0 + 39 * 0.4 * table.redeemed_share, abs=1.0)
    assert all(due == int(due) for due in dues)


def test_a_fleet_that_becomes_faster_calls_the_next_sooner() -> None:
    table = reservations_of(2.5, 64)
    slow = [reserve(table, queued(body=b"%d" % i), 10.0, spacing=2.0) for i in range(40)]
    fast = reserve(table, queued(body=b"next"), 11.0, spacing=0.1)
    assert slow[-1] == pytest.approx(10.0 + 1.0 + 39 * 2.0 * table.redeemed_share, abs=1.0)
    assert fast == pytest.approx(11.0 + (40 * table.redeemed_share + 0.5) * 0.1, abs=1.0)


def test_who_is_late_is_let_in_and_not_waited_for() -> None:
    table, attempt = reservations_of(2.5, 64), queued()
    due = reserve(table, attempt, 10.0)
    assert table.expected(due + LATE_SECONDS / 2, 1.0).requests > 0
    assert table.expected(due + LATE_SECONDS * 2, 1.0).requests == 0
    assert table.redeem(again(attempt), due + 2.0)


def test_equal_requests_have_a_reservation_each() -> None:
    table, attempt = reservations_of(2.0, 64), queued()
    for _ in range(3):
        reserve(table, attempt, 10.0)
    assert [table.redeem(again(attempt), 12.5) for _ in range(4)] == [True, True, True, False]


def test_nothing_is_reserved_beyond_the_horizon_or_the_bound(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(retry_reservations, "RESERVATIONS_MAX", 5)
    table = reservations_of(2.0, 64)
    assert table.reserve(queued(), 100.0, 1.0, 10.0, 60.0) == 70.0
    assert len(table) == 0
    for i in range(9):
        reserve(table, queued(body=b"%d" % i), 10.0)
    assert len(table) == 5


def test_who_is_expected_is_who_is_due_by_the_share_that_comes() -> None:
    table = reservations_of(2.0, 8)
    attempts = [queued(body=b"%d" % i) for i in range(40)]
    for attempt in attempts[:20]:
        reserve(table, attempt, 10.0, spacing=0.0)
    assert table.expected(10.0, 0.5).requests == 0
    for attempt in attempts[:20]:
        assert table.redeem(again(attempt), 11.0)
    assert table.expected(20.0).requests == 0
    assert table.redeemed_share > 0.9
    for attempt in attempts[20:]:
        reserve(table, attempt, 20.0, spacing=0.0)
    expected = table.expected(20.5, 1.0)
    assert expected.requests == 20
    assert expected.prompt_tokens == 20 * 80


def test_who_comes_is_not_counted_before_who_does_not() -> None:
    table = reservations_of(2.0, 8)
    attempts = [queued(body=b"%d" % i) for i in range(40)]
    for attempt in attempts:
        reserve(table, attempt, 10.0, spacing=0.0)
    before = table.redeemed_share
    for attempt in attempts[::4]:
        assert table.redeem(again(attempt), 11.0)
    table.check_invariants()
    assert table.expected(12.9).requests == 0
    assert table.redeemed_share == before
    assert not table.redeem(queued(body=b"new"), 13.1)
    assert table.redeemed_share != before
    assert len(table) == 0


def test_redeemed_reservations_count_towards_the_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(retry_reservations, "RESERVATIONS_MAX", 5)
    table = reservations_of(2.0, 64)
    attempts = [queued(body=b"%d" % i) for i in range(5)]
    for attempt in attempts:
        reserve(table, attempt, 10.0)
    assert all(table.redeem(again(attempt), 12.9) for attempt in attempts)
    reserve(table, queued(), 12.9)
    assert len(table) == 0
    reserve(table, queued(), 15.0)
    assert len(table) == 1


def test_of_few_more_are_expected_than_come_on_average() -> None:
    table = reservations_of(2.0, 64)
    for i in range(9):
        reserve(table, queued(body=b"%d" % i), 10.0, spacing=0.0)
    likely = 9 * table.redeemed_share
    expected = table.expected(10.5, 1.0)
    assert expected.requests == pytest.approx(likely + likely**0.5)


def test_clients_that_never_come_cost_nothing_for_long() -> None:
    table = reservations_of(2.0, 8)
    for i in range(40):
        reserve(table, queued(body=b"%d" % i), 10.0, spacing=0.0)
    assert table.expected(20.0, 1.0).requests == 0
    assert table.redeemed_share < 0.05
