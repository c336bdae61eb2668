"""Retry budget, slow start, gates, limits: small rules, by tables."""

import pytest

from common.errors import BatonError
from common.messages import PriorityClass
from services.router.admission import gates
from services.router.admission.gates import ProportionalShedder
from services.router.admission.limits import Limits, with_changes
from services.router.admission.retry_budget import RetryBudget
from services.router.rules.worker_trust import ramped_slots

INTERACTIVE, STANDARD, BATCH = PriorityClass


def test_retries_are_a_share_of_all_requests() -> None:
    budget = RetryBudget(share=0.1, burst=5)
    allowed = 0
    for _ in range(1000):
        budget.first_attempt()
        allowed += budget.take(0, 1.0)
    assert allowed == pytest.approx(105, abs=2)


def test_the_loss_of_one_worker_is_always_recoverable() -> None:
    budget = RetryBudget(share=0.1, burst=5)
    assert [budget.take(64, 1.0) for _ in range(65)] == [True] * 64 + [False]
    for _ in range(10):
        budget.first_attempt()
    assert [budget.take(64, 1.0) for _ in range(2)] == [True, False]


def test_without_new_requests_retries_trickle() -> None:
    budget = RetryBudget(share=0.1, burst=1, per_min=30)
    times = (5.0, 5.1, 6.9, 7.1, 7.2, 60.0, 60.0)
    assert [budget.take(0, at) for at in times] == [True, False, False, True, False, True, False]


@pytest.mark.parametrize(
    ("since", "given"), [(-1.0, 16), (0.0, 16), (5.0, 40), (9.99, 64), (10.0, 64), (99.0, 64)]
)
def test_a_returning_worker_gets_its_slots_step_by_step(since: float, given: int) -> None:
    assert ramped_slots(64, since, 10.0, 0.25) == given


def test_slow_start_gives_at_least_one_slot_and_can_be_off() -> None:
    assert ramped_slots(2, 0.0, 10.0, 0.01) == 1
    assert ramped_slots(64, 0.0, 0.0, 0.25) == 64


@pytest.mark.parametrize(
    ("stuck", "workers", "refuses"), [(0, 0, False), (6, 2, False), (7, 2, True), (1, 0, True)]
)
def test_the_decode_queue_gate(stuck: int, workers: int, refuses: bool) -> None:
    sentence = gates.decode_queue(stuck, workers, 3)
    assert (sentence is not None) == refuses
    assert not refuses or f"{stuck} computed prompts" in str(sentence)


@pytest.mark.parametrize(("used", "refuses"), [(0.0, False), (0.95, False), (0.96, True)])
def test_the_kv_gate(used: float, refuses: bool) -> None:
    sentence = gates.kv_pressure(used, 0.95)
    assert (sentence is not None) == refuses
    assert not refuses or "96% of the decode workers' KV" in str(sentence)


@pytest.mark.parametrize(
    ("used", "higher", "yields"), [(0.9, 3, True), (0.85, 3, False), (0.9, 0, False)]
)
def test_the_lowest_class_yields_to_others_that_are_there(
    used: float, higher: int, yields: bool
) -> None:
    sentence = gates.kv_yields(used, 0.85, higher_live=higher)
    assert (sentence is not None) == yields


def refused(
    thinning: ProportionalShedder, classes: list[PriorityClass], capacity: float
) -> list[int]:
    """How many of each class."""
    counts = [0, 0, 0]
    for kind in classes:
        counts[kind] += thinning.shed(kind, capacity, 0.8) is not None
    return counts


def test_a_healthy_fleet_is_not_thinned() -> None:
    assert refused(ProportionalShedder(8.0), list(PriorityClass) * 50, 0.8) == [0, 0, 0]


def test_admission_is_scaled_by_what_is_left() -> None:
    standard = refused(ProportionalShedder(8.0), [STANDARD] * 1000, 0.4)[STANDARD]
    assert standard == pytest.approx(500, abs=10)


def test_the_lowest_class_is_thinned_first() -> None:
    mixed = refused(ProportionalShedder(8.0), [INTERACTIVE, STANDARD, BATCH] * 300, 0.6)
    assert mixed[INTERACTIVE] == mixed[STANDARD] == 0
    assert mixed[BATCH] == pytest.approx(900 * 0.25, abs=10)
    worse = refused(ProportionalShedder(8.0), [INTERACTIVE, STANDARD, BATCH] * 300, 0.4)
    assert worse[INTERACTIVE] == 0
    assert worse[BATCH] == 300
    assert worse[STANDARD] == pytest.approx(150, abs=20)


def test_limits_are_with_changes_and_impossible_ones_are_named() -> None:
    limits = Limits(max_active=0, max_queue=10, queue_bytes_max=100, ttft_slo_ms=0)
    assert with_changes(limits, {"max_queue": 5, "ttft_slo_ms": 900}) == Limits(0, 5, 100, 900)
    for change, says in (
        ({"max_queue": -1}, "max_queue must be between 0 and 1000000, not -1"),
        ({"queue_bytes_max": 0}, "queue_bytes_max must be between 1 and"),
        ({"bogus": 1}, "no limit 'bogus'; there are: max_active, max_queue"),
    ):
        with pytest.raises(BatonError, match=says):
            with_changes(limits, change)
