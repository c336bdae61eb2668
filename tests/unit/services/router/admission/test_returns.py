"""Appointments: spaced, known again, kept room for, forgotten."""

from itertools import pairwise

import pytest

from common.config import AdmissionConfig
from services.router.admission import returns
from services.router.admission.returns import Returns
from services.router.records import Try
from tests.unit.services.router.admission.tries import queued

LATE_SECONDS = AdmissionConfig().return_late_ms / 1000


def returns_of(grace: float, memory: int) -> Returns:
    return Returns(AdmissionConfig(return_grace_ms=grace * 1000, estimate_memory=memory))


def book(table: Returns, each: Try, now: float, wait: float = 1.0, spacing: float = 0.5) -> float:
    due = table.book(each, now + wait, spacing, now, 60.0)
    table.check_invariants()
    return due


def again(each: Try) -> Try:
    """The same request as its client sends it again: another id."""
    same = queued(each.tenant, prompt=each.ask.prompt_tokens, body=each.body)
    assert same.key != each.key
    return same


def test_a_return_is_known_by_what_it_asks_and_only_in_its_time() -> None:
    table, each = returns_of(2.0, 64), queued(body=b"one")
    due = book(table, each, 10.0)
    assert due == 11.0
    assert not table.claim(again(each), 10.5)
    assert not table.claim(queued(body=b"two"), 11.0)
    assert not table.claim(queued("other", body=b"one"), 11.0)
    assert table.claim(again(each), 11.0)
    assert not table.claim(again(each), 11.0)
    table.check_invariants()


def test_an_appointment_that_is_not_kept_is_forgotten() -> None:
    table, each = returns_of(2.0, 64), queued()
    book(table, each, 10.0)
    assert not table.claim(again(each), 13.1)
    assert len(table) == 0


def test_appointments_follow_one_another_at_the_drain_rate() -> None:
    table = returns_of(2.0, 64)
    dues = [book(table, queued(body=b"%d" % i), 10.0, spacing=2.0) for i in range(10)]
    gaps = [b - a for a, b in pairwise(dues)]
    assert gaps == pytest.approx([2.0 * table.share] * 9)


def test_an_appointment_is_at_the_instant_that_a_header_in_whole_seconds_names() -> None:
    table, each = returns_of(2.5, 64), queued()
    assert book(table, each, 10.25, wait=1.3) == 12.25
    assert not table.claim(again(each), 11.55)
    assert table.claim(again(each), 12.25)
    assert book(returns_of(2.5, 64), each, 0.1, wait=1.0) == pytest.approx(1.1)


def test_spacing_is_not_lost_in_the_rounding() -> None:
    table = returns_of(2.5, 64)
    dues = [book(table, queued(body=b"%d" % i), 10.0, spacing=0.4) for i in range(40)]
    assert dues[-1] == pytest.approx(10.0 + 1.0 + 39 * 0.4 * table.share, abs=1.0)
    assert all(due == int(due) for due in dues)


def test_a_fleet_that_becomes_faster_calls_the_next_sooner() -> None:
    table = returns_of(2.5, 64)
    slow = [book(table, queued(body=b"%d" % i), 10.0, spacing=2.0) for i in range(40)]
    fast = book(table, queued(body=b"next"), 11.0, spacing=0.1)
    assert slow[-1] == pytest.approx(10.0 + 1.0 + 39 * 2.0 * table.share, abs=1.0)
    assert fast == pytest.approx(11.0 + (40 * table.share + 0.5) * 0.1, abs=1.0)


def test_who_is_late_is_let_in_and_not_waited_for() -> None:
    table, each = returns_of(2.5, 64), queued()
    due = book(table, each, 10.0)
    assert table.expected(due + LATE_SECONDS / 2, 1.0).requests > 0
    assert table.expected(due + LATE_SECONDS * 2, 1.0).requests == 0
    assert table.claim(again(each), due + 2.0)


def test_equal_requests_have_an_appointment_each() -> None:
    table, each = returns_of(2.0, 64), queued()
    for _ in range(3):
        book(table, each, 10.0)
    assert [table.claim(again(each), 12.5) for _ in range(4)] == [True, True, True, False]


def test_nothing_is_booked_beyond_the_horizon_or_the_bound(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(returns, "BOOKED_MAX", 5)
    table = returns_of(2.0, 64)
    assert table.book(queued(), 100.0, 1.0, 10.0, 60.0) == 70.0
    assert len(table) == 0
    for i in range(9):
        book(table, queued(body=b"%d" % i), 10.0)
    assert len(table) == 5


def test_who_is_expected_is_who_is_due_by_the_share_that_comes() -> None:
    table = returns_of(2.0, 8)
    tries = [queued(body=b"%d" % i) for i in range(40)]
    for each in tries[:20]:
        book(table, each, 10.0, spacing=0.0)
    assert table.expected(10.0, 0.5).requests == 0
    for each in tries[:20]:
        assert table.claim(again(each), 11.0)
    assert table.share > 0.9
    for each in tries[20:]:
        book(table, each, 20.0, spacing=0.0)
    expected = table.expected(20.5, 1.0)
    assert expected.requests == 20
    assert expected.prompt_tokens == 20 * 80


def test_of_few_more_are_expected_than_come_on_average() -> None:
    table = returns_of(2.0, 64)
    for i in range(9):
        book(table, queued(body=b"%d" % i), 10.0, spacing=0.0)
    likely = 9 * table.share
    expected = table.expected(10.5, 1.0)
    assert expected.requests == pytest.approx(likely + likely**0.5)


def test_clients_that_never_come_cost_nothing_for_long() -> None:
    table = returns_of(2.0, 8)
    for i in range(40):
        book(table, queued(body=b"%d" % i), 10.0, spacing=0.0)
    assert table.expected(20.0, 1.0).requests == 0
    assert table.share < 0.05
