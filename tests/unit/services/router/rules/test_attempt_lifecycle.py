"""A request's way through the core: the true path, refusals, repeats, staleness, credits."""

import pytest

from common.config import AdmissionConfig
from common.messages import (
    Abort,
    Decode,
    Failed,
    KvReport,
    Load,
    Placed,
    Prefill,
    Prefilled,
    Refused,
)
from services.router.events import DrainExpired, DrainStarted
from tests.rigs.messages import BLOCK
from tests.unit.services.router.rig import Rig, standard

PATIENCE_SECONDS = AdmissionConfig().no_decode_wait_ms / 1000


def refusal(rig: Rig) -> Refused:
    refused = rig.take(Refused)
    assert len(refused) == 1
    return refused[0]


def test_the_true_path(rig: Rig) -> None:
    rig.submit(prompt=40, out=8)
    assert [type(send.message) for send in rig.sent] == [Placed, Prefill, Decode]
    assert [send.peer for send in rig.sent] == ["g0|1", "p0|1", "d0|1"]
    assert [send.body for send in rig.sent] == [None, b"body", b"body"]
    placed, prefill, decode = rig.take(Placed)[0], rig.take(Prefill)[0], rig.take(Decode)[0]
    assert (placed.prefill, placed.decode, placed.decode_incarnation) == ("p0", "d0", "1")
    assert prefill.ticket == decode.ticket
    assert prefill.ticket.kv_address == "127.0.0.1:p0"
    assert len(prefill.ticket.secret) == 16
    assert (decode.gateway, decode.stream_endpoint) == ("g0", "ipc://g0")
    assert rig.row("d0|1").held_tokens == 48
    assert (rig.row("p0|1").held_tokens, rig.row("p0|1").queued_tokens) == (48, 40)
    rig.prefilled()
    assert (rig.row("p0|1").held_tokens, rig.row("p0|1").queued_tokens) == (48, 0)
    rig.started()
    assert rig.state() == "decoding"
    assert rig.row("p0|1").held_tokens == 0
    rig.ended()
    assert rig.state() == "ended"
    assert rig.nothing_held()
    assert not rig.sent


def test_each_ticket_has_its_own_secret(rig: Rig) -> None:
    for i in range(5):
        rig.submit(f"r{i}")
    assert len({prefill.ticket.secret for prefill in rig.take(Prefill)}) == 5


def test_reports_may_come_in_any_order(rig: Rig) -> None:
    rig.submit()
    rig.started()
    assert rig.row("p0|1").queued_tokens == 40
    rig.prefilled()
    assert rig.row("p0|1").held_tokens == 0
    rig.ended()
    assert not rig.take(Abort)
    assert rig.nothing_held()


@pytest.mark.parametrize("kv", [None, KvReport(blocks=0), KvReport(blocks=2, retries=1)])
def test_decode_that_did_without_p_frees_p(kv: KvReport | None, rig: Rig) -> None:
    rig.submit()
    rig.started(kv=kv)
    assert rig.row("p0|1").held_tokens == 0
    assert [send.peer for send in rig.sent if isinstance(send.message, Abort)] == ["p0|1"]


def test_without_a_prefill_worker_d_computes_and_the_reason_is_told() -> None:
    rig = Rig()
    rig.gateway()
    rig.decode()
    rig.submit()
    assert rig.take(Decode)[0].ticket is None
    placement = rig.known().placement
    assert placement is not None
    assert "no prefill worker is ready" in placement.sentence
    rig.ended()
    assert rig.core.tables.counts.placed_local == 1


def test_a_failed_prefill_is_recorded_and_d_goes_on(rig: Rig) -> None:
    rig.submit()
    rig.prefilled(error="engine_failed")
    assert "p0 failed" in rig.known().prefill_problem
    assert rig.row("p0|1").held_tokens == 0
    assert not rig.take(Failed)
    rig.started(kv=None)
    rig.ended()
    assert rig.state() == "ended"
    assert rig.nothing_held()


def test_a_failed_decode_ends_the_try_and_frees_p(rig: Rig) -> None:
    rig.submit()
    rig.ended(error="engine_failed")
    assert rig.state() == "failed"
    assert [send.peer for send in rig.sent if isinstance(send.message, Abort)] == ["p0|1"]
    assert rig.nothing_held()


def test_cancel_holds_credits_until_d_says_ended(rig: Rig) -> None:
    rig.submit()
    rig.cancel()
    aborted = [send.peer for send in rig.sent if isinstance(send.message, Abort)]
    assert aborted == ["d0|1", "p0|1"]
    assert rig.state() == "aborting"
    assert rig.row("d0|1").held_tokens == 48
    assert rig.row("p0|1").held_tokens == 0
    rig.sent.clear()
    rig.cancel()
    assert not rig.sent
    rig.ended(error="cancelled")
    assert rig.state() == "cancelled"
    assert rig.nothing_held()


def test_cancel_of_a_queued_request_is_the_end_of_it() -> None:
    rig = standard(max_active=1)
    rig.submit("r1")
    rig.submit("r2")
    rig.cancel("r2")
    assert rig.state("r2") == "cancelled"
    rig.ended("r1")
    assert not [p for p in rig.take(Placed) if p.request_id == "r2"]


def test_an_end_that_crosses_a_cancel_is_the_end(rig: Rig) -> None:
    rig.submit()
    rig.cancel()
    rig.ended()
    assert rig.state() == "cancelled"
    assert rig.nothing_held()


def test_d_aborted_by_its_gateway_itself_ends_as_cancelled(rig: Rig) -> None:
    rig.submit()
    rig.started()
    rig.ended(error="cancelled")
    assert rig.state() == "cancelled"


def test_max_active_queues_and_the_queue_is_first_come_first_served() -> None:
    rig = standard(max_active=1)
    for name in ("r1", "r2", "r3"):
        rig.submit(name)
    assert [p.request_id for p in rig.take(Placed)] == ["r1"]
    rig.ended("r1")
    assert [p.request_id for p in rig.take(Placed)] == ["r2"]
    rig.ended("r2")
    assert [p.request_id for p in rig.take(Placed)] == ["r3"]


def test_slots_of_the_decode_workers_bound_what_is_placed() -> None:
    rig = Rig()
    rig.gateway()
    rig.decode("d0", seqs=2)
    rig.decode("d1", seqs=3)
    rig.beat("d0|1", Load())
    rig.beat("d1|1", Load())
    for i in range(9):
        rig.submit(f"r{i}", prompt=4, out=4)
    assert len(rig.take(Placed)) == 5
    assert len(rig.core.tables.waiting) == 4


def test_kv_is_never_promised_beyond_the_grant() -> None:
    rig = standard(kv_grant_max=0.5)
    for i in range(8):
        rig.submit(f"r{i}", prompt=100, out=92)
    assert rig.row("d0|1").kv_tokens_max == 50 * BLOCK
    assert rig.row("d0|1").held_tokens == 4 * 192
    assert len(rig.core.tables.waiting) == 4


def test_a_small_request_passes_a_large_one_but_not_for_ever(rig: Rig) -> None:
    rig.submit("first", prompt=900, out=90)
    rig.submit("large", prompt=900, out=90)
    small = 0
    while True:
        rig.submit(f"s{small}", prompt=10, out=6)
        if rig.state(f"s{small}") == "queued":
            break
        rig.ended(f"s{small}")
        small += 1
    assert small == AdmissionConfig().passed_max
    assert rig.state("large") == "queued"
    rig.ended("first")
    assert rig.state("large") == "placed"
    assert rig.state(f"s{small}") == "placed"


def test_only_a_window_of_the_queue_is_looked_at() -> None:
    rig = standard(max_queue=100)
    rig.submit("first", prompt=900, out=90)
    for i in range(AdmissionConfig().look_past):
        rig.submit(f"large{i}", prompt=900, out=90)
    rig.submit("small", prompt=10, out=6)
    assert rig.state("small") == "queued"
    rig.cancel("large3")
    assert rig.state("small") == "placed"


def test_a_full_queue_refuses_with_a_measured_retry_after() -> None:
    rig = standard(max_active=1, max_queue=2)
    for i in range(3):
        rig.submit(f"r{i}")
    rig.take(Placed)
    rig.submit("late")
    refused = refusal(rig)
    assert (refused.code, refused.request_id, refused.attempt) == ("queue_full", "late", 1)
    assert refused.retry_after_ms == 2000
    for i in range(20):
        rig.now += 2.0
        rig.ended(f"r{i}")
        rig.submit(f"r{i + 3}")
    rig.submit("later")
    assert refusal(rig).retry_after_ms in {6000, 7000, 8000}
    rig.submit("later")
    assert refusal(rig).request_id == "later"


def test_the_queue_is_bounded_by_bytes_too() -> None:
    rig = standard(max_active=1, queue_bytes_max=10)
    rig.submit("r1", body=b"12345678")
    rig.submit("r2", body=b"12345678")
    rig.submit("r3", body=b"123")
    assert refusal(rig).code == "queue_full"
    rig.submit("r4", body=b"12")
    assert rig.state("r4") == "queued"


def test_without_a_queue_a_request_is_placed_now_or_refused() -> None:
    rig = standard(max_active=1, max_queue=0)
    rig.submit("r1")
    assert rig.state("r1") == "placed"
    rig.submit("r2")
    assert refusal(rig).code == "queue_full"
    rig.ended("r1")
    rig.submit("r2")
    assert rig.state("r2") == "placed"


def test_deadlines_are_checked_when_dequeued_and_while_waiting() -> None:
    rig = standard(max_active=1)
    rig.submit("r1")
    rig.submit("r2", deadline_ms=500)
    rig.submit("r3", deadline_ms=100)
    rig.tick(0.2)
    assert [r.request_id for r in rig.take(Refused)] == ["r3"]
    rig.now += 0.4
    rig.ended("r1")
    refused = refusal(rig)
    assert (refused.request_id, refused.code) == ("r2", "deadline_exceeded")
    assert "600 ms in the queue" in refused.message


@pytest.mark.parametrize(("prompt", "out"), [(1000, 1), (500, 501), (5000, 1), (1, 1000)])
def test_what_no_decode_worker_can_ever_hold_is_refused_at_once(prompt: int, out: int) -> None:
    rig = standard()
    rig.submit(prompt=prompt, out=out)
    assert refusal(rig).code == "context_length_exceeded"


def test_what_turns_out_too_large_for_all_that_came_is_refused_then() -> None:
    rig = Rig()
    rig.gateway()
    rig.submit(prompt=5000)
    assert rig.state() == "queued"
    rig.decode()
    assert refusal(rig).code == "context_length_exceeded"


def test_work_waits_a_while_for_a_decode_worker() -> None:
    rig = Rig()
    gateway = rig.gateway()
    rig.submit("r1")
    assert rig.state("r1") == "queued"
    rig.tick(PATIENCE_SECONDS - 0.5, alive=(gateway,))
    assert rig.state("r1") == "queued"
    rig.tick(1.0, alive=(gateway,))
    refused = refusal(rig)
    assert refused.code == "no_capacity"
    assert 5000 <= refused.retry_after_ms <= 6000
    rig.submit("r2")
    assert refusal(rig).code == "no_capacity"
    rig.decode()
    rig.submit("r3")
    assert rig.state("r3") == "placed"


def test_a_decode_worker_that_comes_in_time_serves_those_who_waited(rig: Rig) -> None:
    rig.gone("d0|1")
    rig.submit("r1")
    rig.tick(2.0, alive=("g0|1", "p0|1"))
    rig.decode("d0", "2")
    assert rig.state("r1") == "placed"


@pytest.mark.parametrize(
    ("change", "code"),
    [
        ({"prompt": 0}, "invalid_request"),
        ({"prompt": -5}, "invalid_request"),
        ({"out": 0}, "invalid_request"),
        ({"body": None}, "invalid_request"),
        ({"attempt": 0}, "invalid_request"),
        ({"request_id": ""}, "invalid_request"),
        ({"request_id": "x" * 300}, "invalid_request"),
    ],
)
def test_senseless_submits_are_refused(change: dict[str, int], code: str, rig: Rig) -> None:
    rig.submit(**change)  # type: ignore[arg-type]
    assert refusal(rig).code == code
    assert not rig.core.tables.attempts


def test_a_draining_router_refuses_new_work_and_places_what_waits() -> None:
    rig = standard(max_active=1)
    rig.submit("r1")
    rig.submit("r2")
    rig.submit("r3")
    rig.handle(DrainStarted())
    rig.submit("r4")
    refused = refusal(rig)
    assert (refused.request_id, refused.code) == ("r4", "draining")
    assert refused.retry_after_ms >= 1000
    rig.ended("r1")
    assert rig.state("r2") == "placed"
    rig.handle(DrainExpired())
    assert refusal(rig).request_id == "r3"
    assert rig.state("r2") == "placed"


def test_history_is_bounded() -> None:
    rig = standard(history=3)
    for i in range(10):
        rig.submit(f"r{i}")
        rig.ended(f"r{i}")
    assert len(rig.core.tables.history) == 3


def test_a_body_is_not_kept_once_it_was_sent(rig: Rig) -> None:
    rig.submit(body=b"x" * 1000)
    assert rig.known().body == b""
    assert rig.core.tables.waiting.bytes_held == 0


def test_the_gateway_is_told_what_p_had_in_its_cache(rig: Rig) -> None:
    rig.submit("r1")
    rig.prefilled("r1", cached_tokens=32)
    rig.prefilled("r1", cached_tokens=32)
    rig.submit("r2")
    rig.prefilled("r2")
    rig.prefilled("r3", cached_tokens=32)
    told = [Prefilled(request_id="r1", attempt=1, cached_tokens=32)]
    assert rig.take(Prefilled, "g0|1") == told, "once, and where there is something to tell"
