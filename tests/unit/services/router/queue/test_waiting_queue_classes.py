"""The whole queue: strict classes with a floor, the reserve, what is ahead."""

import pytest

from common.config import AdmissionConfig
from common.messages import PriorityClass
from services.router.queue.waiting_queue import WaitingQueue
from services.router.records.attempt import Attempt
from tests.unit.services.router.admission.attempts import queued

INTERACTIVE, STANDARD, BATCH = PriorityClass


def fill(waiting: WaitingQueue, priority: PriorityClass, count: int, cost: float = 100.0) -> None:
    for _ in range(count):
        waiting.append(queued(f"t{priority}", priority=priority, cost=cost))


def serve(waiting: WaitingQueue, times: int) -> list[PriorityClass]:
    served = []
    for _ in range(times):
        attempt = waiting.head()
        waiting.serve(attempt)
        served.append(attempt.priority)
    waiting.check_invariants()
    return served


def test_a_higher_class_goes_first() -> None:
    waiting = WaitingQueue(100, 10_000, AdmissionConfig(class_floor=0.0))
    fill(waiting, BATCH, 2)
    fill(waiting, STANDARD, 2)
    fill(waiting, INTERACTIVE, 2)
    assert serve(waiting, 6) == [INTERACTIVE] * 2 + [STANDARD] * 2 + [BATCH] * 2


def test_a_stream_that_goes_on_goes_first_in_its_class() -> None:
    waiting = WaitingQueue(100, 10_000, AdmissionConfig(class_floor=0.0))
    fill(waiting, STANDARD, 2)
    moved = [queued(tenant, number=2) for tenant in ("greedy", "greedy", "other")]
    for attempt in moved:
        waiting.append(attempt)
    fill(waiting, INTERACTIVE, 1)
    assert list(waiting.in_order())[1:4] == moved
    assert serve(waiting, 1) == [INTERACTIVE], "a higher class still goes first"
    waiting.remove(moved[1])
    for attempt in (moved[0], moved[2]):
        assert waiting.head() is attempt
        waiting.serve(attempt)
        waiting.check_invariants()
    assert serve(waiting, 2) == [STANDARD] * 2


def test_what_nobody_reads_goes_last_whatever_its_class() -> None:
    waiting = WaitingQueue(100, 10_000, AdmissionConfig(class_floor=0.0))
    unread = [queued("a", priority=INTERACTIVE, number=2), queued("a", priority=INTERACTIVE)]
    for attempt in unread:
        attempt.abandoned = True
        waiting.append(attempt)
    assert waiting.head() is unread[0]
    fill(waiting, BATCH, 2)
    assert list(waiting.in_order())[2:] == unread
    assert serve(waiting, 4) == [BATCH, BATCH, INTERACTIVE, INTERACTIVE]
    waiting.append(unread[0])
    waiting.remove(unread[0])
    waiting.check_invariants()


def test_a_tenant_pays_for_what_it_does_not_read() -> None:
    waiting = WaitingQueue(100, 10_000, AdmissionConfig(class_floor=0.0))
    unread = queued("a", cost=500.0)
    unread.abandoned = True
    read = [queued("a", cost=100.0), queued("b", cost=100.0)]
    for attempt in read:
        waiting.append(attempt)
    waiting.append(unread)
    waiting.serve(unread)
    assert waiting.head() is read[1]
    assert waiting.counters()["standard"]["a"] == 500.0


@pytest.mark.parametrize("cost", [25.0, 100.0, 400.0])
def test_lower_classes_get_their_floor_by_cost(cost: float) -> None:
    waiting = WaitingQueue(3000, 100_000, AdmissionConfig(class_floor=0.05))
    fill(waiting, INTERACTIVE, 1000)
    fill(waiting, BATCH, 500, cost)
    served = serve(waiting, 800)
    batch = cost * served.count(BATCH)
    share = batch / (batch + 100.0 * served.count(INTERACTIVE))
    assert share == pytest.approx(0.05, abs=0.005)


def test_each_lower_class_has_a_floor_of_its_own() -> None:
    waiting = WaitingQueue(3000, 100_000, AdmissionConfig(class_floor=0.05))
    for priority in PriorityClass:
        fill(waiting, priority, 900)
    served = serve(waiting, 800)
    for lower in (STANDARD, BATCH):
        assert served.count(lower) / 800 >= 0.045
    assert served.count(INTERACTIVE) / 800 >= 0.88


def test_who_does_not_wait_is_owed_nothing() -> None:
    waiting = WaitingQueue(3000, 100_000, AdmissionConfig(class_floor=0.05))
    fill(waiting, INTERACTIVE, 500)
    serve(waiting, 300)
    fill(waiting, BATCH, 5)
    assert BATCH not in serve(waiting, 15)


def test_ahead_counts_higher_classes_and_not_lower_ones() -> None:
    waiting = WaitingQueue(100, 10_000, AdmissionConfig())
    fill(waiting, INTERACTIVE, 3)
    fill(waiting, BATCH, 7)
    newcomer = queued("new", priority=STANDARD)
    assert waiting.ahead(newcomer).requests == 3
    assert waiting.ahead(queued("t2", priority=BATCH)).requests == 10


def test_the_window_goes_over_all_classes() -> None:
    waiting = WaitingQueue(100, 10_000, AdmissionConfig())
    fill(waiting, BATCH, 3)
    fill(waiting, INTERACTIVE, 3)
    assert [attempt.priority for attempt in waiting.window()] == [INTERACTIVE] * 3 + [BATCH] * 3
    serve(waiting, 3)
    waiting._owed[BATCH] = 0.0
    assert len(list(waiting.window())) == 3


def test_an_owed_class_is_in_the_window_once() -> None:
    waiting = WaitingQueue(100, 10_000, AdmissionConfig(class_floor=0.5))
    fill(waiting, INTERACTIVE, 4)
    fill(waiting, BATCH, 4)
    serve(waiting, 1)
    window: list[Attempt] = list(waiting.window())
    assert window[0].priority is BATCH
    assert len({attempt.key for attempt in window}) == len(window) == 7


def test_the_last_of_the_queue_is_for_tenants_below_their_share() -> None:
    waiting = WaitingQueue(20, 10_000, AdmissionConfig(queue_reserve=0.1))
    for _ in range(18):
        attempt = queued("flood")
        assert waiting.may_use_reserve(attempt)
        waiting.append(attempt)
    waiting.append(queued("calm"))
    assert not waiting.may_use_reserve(queued("flood"))
    assert waiting.may_use_reserve(queued("calm"))
    assert not waiting.may_use_reserve(queued("calm", priority=BATCH))
    assert waiting.has_room(4)


def test_a_single_tenant_may_use_the_whole_queue() -> None:
    waiting = WaitingQueue(20, 10_000, AdmissionConfig(queue_reserve=0.1))
    for _ in range(20):
        attempt = queued("only")
        assert waiting.may_use_reserve(attempt)
        waiting.append(attempt)
    assert not waiting.has_room(4)


def test_the_reserve_counts_bytes_too() -> None:
    waiting = WaitingQueue(1000, 1000, AdmissionConfig(queue_reserve=0.1))
    waiting.append(queued("flood", body=bytes(800)))
    waiting.append(queued("calm", body=bytes(50)))
    assert not waiting.may_use_reserve(queued("x", body=bytes(100), priority=BATCH))
    assert waiting.may_use_reserve(queued("x", body=bytes(100)))


def test_a_class_is_owed_service_only_before_a_higher_one_that_waits() -> None:
    waiting = WaitingQueue(100, 10_000, AdmissionConfig(class_floor=0.5))
    fill(waiting, BATCH, 2)
    assert not waiting.owes(BATCH), "nobody else waits"
    fill(waiting, STANDARD, 3)
    assert not waiting.owes(BATCH)
    assert serve(waiting, 1) == [STANDARD]
    assert waiting.owes(BATCH)
    assert not waiting.owes(STANDARD)
    assert serve(waiting, 1) == [BATCH]
    assert not waiting.owes(BATCH)
