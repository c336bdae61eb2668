"""The parts with a limit: the queue, the history, the measured drain rate."""

import pytest

from common.config import AdmissionConfig
from services.router.estimates.drain_rate import SAMPLES, DrainRate
from services.router.placement.types import ResourceRequest
from services.router.queue.waiting_queue import WaitingQueue
from services.router.records.attempt import Attempt
from services.router.records.history import History


def make(request_id: str, attempt: int = 1, body: bytes = b"1234") -> Attempt:
    return Attempt(request_id, attempt, "g0|1", ResourceRequest(1, 1), body, 0.0)


def test_the_queue_is_bounded_by_count_and_by_bytes() -> None:
    waiting = WaitingQueue(3, 10, AdmissionConfig())
    waiting.append(make("a"))
    assert waiting.has_room(6)
    assert not waiting.has_room(7)
    waiting.append(make("b", body=b""))
    waiting.append(make("c", body=b""))
    assert not waiting.has_room(0)
    waiting.check_invariants()


def test_the_window_is_the_head_and_a_few_behind() -> None:
    waiting = WaitingQueue(100, 1000, AdmissionConfig())
    attempts = [make(str(i)) for i in range(AdmissionConfig().look_past + 5)]
    for attempt in attempts:
        waiting.append(attempt)
    assert list(waiting.window()) == attempts[: AdmissionConfig().look_past]
    waiting.remove(attempts[0])
    assert waiting.head() is attempts[1]
    assert waiting.bytes_held == 4 * (AdmissionConfig().look_past + 4)


def test_one_that_was_passed_often_enough_is_passed_no_more() -> None:
    waiting = WaitingQueue(100, 1000, AdmissionConfig())
    first, second, third = make("a"), make("b"), make("c")
    for attempt in (first, second, third):
        waiting.append(attempt)
    second.passed_by = AdmissionConfig().passed_max
    assert list(waiting.window()) == [first, second]


def test_history_keeps_the_newest_and_forgets_the_rest() -> None:
    history = History(2)
    for attempt in (make("a", 1), make("a", 2), make("b")):
        history.add(attempt)
        history.check_invariants()
    assert [attempt.key for attempt in history] == [("a", 2), ("b", 1)]
    latest = history.latest("a")
    assert latest is not None
    assert latest.number == 2
    history.add(make("c"))
    assert history.latest("a") is None


def test_the_drain_rate_is_measured_and_decays_with_silence() -> None:
    rate = DrainRate()
    assert rate.per_second(0.0) is None
    for i in range(400):
        rate.ended(i * 0.1)
    assert rate.per_second(39.9) == pytest.approx(10, rel=0.03)
    silent = rate.per_second(39.9 + 60)
    assert silent is not None
    assert silent == pytest.approx(SAMPLES / 85.5, rel=0.02)
