"""Virtual token counters: shares by weight, the lift, the order, what is ahead."""

import pytest

from services.router.queue import fair_class
from services.router.queue.fair_class import FairClass
from tests.unit.services.router.admission.attempts import queued


def serve(waiting: FairClass, times: int) -> list[str]:
    """Tenants in the order in which they were served."""
    names = []
    for _ in range(times):
        attempt = next(waiting.in_order())
        waiting.serve(attempt)
        waiting.check_invariants()
        names.append(attempt.tenant)
    return names


def filled(**tenants: int) -> FairClass:
    waiting = FairClass()
    for name, requests in tenants.items():
        for _ in range(requests):
            waiting.append(queued(name))
    waiting.check_invariants()
    return waiting


def test_one_tenant_is_served_in_order_of_arrival() -> None:
    waiting = FairClass()
    attempts = [queued() for _ in range(5)]
    for attempt in attempts:
        waiting.append(attempt)
    assert list(waiting.in_order()) == attempts


def test_a_flood_does_not_hold_up_others() -> None:
    waiting = filled(flood=100, calm=3)
    assert serve(waiting, 6).count("calm") == 3


def test_shares_follow_weights_and_cost() -> None:
    waiting = FairClass()
    for _ in range(200):
        waiting.append(queued("heavy", weight=4.0))
        waiting.append(queued("light", weight=1.0))
        waiting.append(queued("costly", weight=1.0, cost=200.0))
    served = serve(waiting, 220)
    assert served.count("heavy") == pytest.approx(160, abs=3)
    assert served.count("light") == pytest.approx(40, abs=3)
    assert served.count("costly") == pytest.approx(20, abs=3)


def test_a_tenant_that_was_idle_has_saved_nothing() -> None:
    waiting = filled(busy=100)
    serve(waiting, 50)
    for _ in range(50):
        waiting.append(queued("late"))
    served = serve(waiting, 20)
    assert served.count("late") == pytest.approx(10, abs=1)


def test_nor_does_it_when_everybody_was_idle_meanwhile() -> None:
    waiting = filled(busy=50)
    serve(waiting, 50)
    for _ in range(20):
        waiting.append(queued("busy"))
        waiting.append(queued("late"))
    assert serve(waiting, 20).count("late") == pytest.approx(10, abs=1)


def test_leaving_and_coming_back_does_not_reset_a_debt() -> None:
    waiting = filled(a=10, b=10)
    greedy = next(attempt for attempt in waiting.in_order() if attempt.tenant == "a")
    waiting.serve(greedy)
    waiting.settle("a", 500.0)
    for attempt in [attempt for attempt in waiting.in_order() if attempt.tenant == "a"]:
        waiting.remove(attempt)
    for _ in range(9):
        waiting.append(queued("a"))
    assert serve(waiting, 6) == ["b"] * 6


def test_settlement_moves_a_tenant_in_the_order() -> None:
    waiting = filled(a=5, b=5)
    first = next(waiting.in_order())
    waiting.serve(first)
    waiting.settle(first.tenant, -100.0)
    assert next(waiting.in_order()).tenant == first.tenant
    waiting.settle(first.tenant, 1000.0)
    assert next(waiting.in_order()).tenant != first.tenant
    waiting.settle("nobody", 5.0)
    waiting.check_invariants()


def test_what_is_ahead_is_the_own_queue_and_the_others_share() -> None:
    waiting = filled(flood=100, own=2)
    assert waiting.ahead("flood", 1.0, 100.0).requests == pytest.approx(102)
    ahead = waiting.ahead("own", 1.0, 100.0)
    assert ahead.requests == pytest.approx(2 + 3)
    assert ahead.prompt_tokens == pytest.approx(5 * 80)
    assert ahead.total_tokens == pytest.approx(5 * 90)
    assert waiting.ahead("new", 1.0, 100.0).requests == pytest.approx(2, abs=0.1)
    assert FairClass().ahead("new", 1.0, 100.0).requests == 0


def test_ahead_is_what_is_then_served() -> None:
    waiting = filled(flood=60, other=60)
    ahead = waiting.ahead("new", 2.0, 400.0).requests
    late = queued("new", weight=2.0, cost=400.0)
    waiting.append(late)
    served = 0
    while late.key in [attempt.key for attempt in waiting.in_order()]:
        attempt = next(waiting.in_order())
        waiting.serve(attempt)
        served += 1
    assert served - 1 <= ahead + 2


def test_a_later_attempt_is_paid_for_and_is_ahead_of_newcomers() -> None:
    kind = FairClass()
    for tenant in ("a", "b"):
        kind.append(queued(tenant))
    again = queued("a", number=2, prompt=500)
    kind.append(again)
    assert kind.ahead("c", 1.0, 1.0).prompt_tokens >= 500
    assert kind.ahead("a", 1.0, 100.0) == (1 + 1 + 1, 80 + 500 + 80, 90 + 510 + 90)
    assert kind.first() is again
    kind.serve(again)
    kind.check_invariants()
    assert kind.counters() == {"b": 0.0, "a": 100.0}, "its tenant pays"
    alone = FairClass()
    alone.append(again)
    assert alone.ahead("a", 1.0, 1.0).requests == 1
    alone.serve(again)
    assert not len(alone)


def test_forgotten_tenants_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fair_class, "IDLE_MAX", 3)
    waiting = FairClass()
    for i in range(20):
        attempt = queued(f"t{i}")
        waiting.append(attempt)
        waiting.serve(attempt)
    waiting.check_invariants()
    assert len(waiting._idle) == 3
