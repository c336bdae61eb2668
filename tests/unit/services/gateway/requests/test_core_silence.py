"""What nothing is heard of is asked for again, and no silence lasts for ever."""

from __future__ import annotations

from common.errors import Code
from common.messages import Failed, Refused, Submit
from services.gateway.requests.events import (
    Closed,
    FromRouter,
    RouterDown,
    RouterUp,
    Tick,
    ToRouter,
    WorkerGone,
)
from services.gateway.requests.table import ABORT_SECONDS
from tests.unit.services.gateway.gate import D0, WAIT_MS, Gate, sent

WAIT = WAIT_MS / 1000


def placed() -> Gate:
    gate = Gate()
    gate.open()
    gate.now = 5.0
    gate.place()
    return gate


def test_silence_after_placement_is_asked_about() -> None:
    gate = placed()
    gate.now += WAIT - 0.01
    assert gate.do(Tick()) == []
    gate.now += 0.02
    assert sent(gate.do(Tick())) == ["Submit"]
    assert gate.do(Tick()) == []
    gate.now += 2 * WAIT
    assert sent(gate.do(Tick())) == ["Submit"]


def test_a_stream_that_spoke_is_not_asked_about() -> None:
    gate = placed()
    gate.token("a")
    gate.now += 3 * WAIT
    assert gate.do(Tick()) == []


def test_nobody_is_asked_while_no_router_answers() -> None:
    gate = placed()
    gate.do(RouterDown())
    gate.now += 3 * WAIT
    assert gate.do(Tick()) == []
    assert gate.core.active == 1


def test_the_answer_that_it_is_lost_ends_it() -> None:
    gate = placed()
    gate.now += WAIT
    gate.do(Tick())
    gate.do(FromRouter(Failed(request_id="r", attempt=1, code="worker_lost", message="lost")))
    assert gate.error().code is Code.WORKER_LOST
    assert gate.core.active == 0


def test_a_submit_that_nobody_answers_is_sent_again_as_the_same_attempt() -> None:
    gate = Gate()
    gate.open()
    gate.now += WAIT
    (again,) = gate.do(Tick())
    assert isinstance(again, ToRouter)
    assert isinstance(again.message, Submit)
    assert again.message.attempt == 1
    assert again.body is not None
    gate.place()
    gate.token("a")
    assert gate.core.active == 1


def test_the_pauses_between_asking_again_double() -> None:
    gate = Gate(token_wait_ms_max=1e6)
    gate.open()
    asked = []
    while gate.now < 40 * WAIT:
        gate.now += WAIT / 4
        if sent(gate.do(Tick())):
            asked.append(gate.now / WAIT)
    assert asked == [1.0, 3.0, 7.0, 15.0, 31.0]


BOUND_MS = 20 * WAIT_MS


def until_over(gate: Gate) -> float:
    """Ticks until the request is over; returns the seconds it took in units of `WAIT`."""
    began = gate.now
    while gate.core.active:
        gate.now += WAIT / 2
        gate.do(Tick())
        assert gate.now - began < 100 * WAIT
    return (gate.now - began) / WAIT


def test_a_request_that_no_router_places_ends_with_a_reason() -> None:
    gate = Gate(token_wait_ms_max=BOUND_MS)
    gate.open()
    assert until_over(gate) == 20.0
    error = gate.error()
    assert error.code is Code.OVERLOADED
    assert error.retry_after_ms
    assert error.message == "the request waited 20 s, and no worker was found for it"


def test_a_placed_request_without_a_token_ends_with_the_name_of_its_worker() -> None:
    gate = Gate(token_wait_ms_max=BOUND_MS)
    gate.open()
    gate.place()
    assert until_over(gate) == 20.0
    assert gate.error().code is Code.WORKER_LOST
    assert "decode worker d0 sent nothing for this request for 20 s" in gate.error().message


def test_a_stream_that_stops_ends_its_bound_after_its_last_token() -> None:
    gate = Gate(token_wait_ms_max=BOUND_MS)
    gate.open()
    gate.place()
    for index in range(3):
        gate.now += 15 * WAIT
        gate.token("a", index)
    assert until_over(gate) == 20.0
    assert gate.error().code is Code.STREAM_INTERRUPTED
    assert "d0 sent nothing" in gate.error().message


def test_routers_that_come_and_go_do_not_keep_a_request_waiting_for_ever() -> None:
    gate = Gate(token_wait_ms_max=BOUND_MS)
    gate.open()
    while gate.core.active:
        gate.now += WAIT / 2
        gate.do(RouterDown())
        gate.do(Tick())
        if gate.core.active:
            gate.do(RouterUp())
        assert gate.now <= 20 * WAIT
    assert gate.error().code is Code.OVERLOADED


def test_what_the_router_said_last_is_the_reason_of_a_stream_that_waited_in_vain() -> None:
    gate = Gate(recovery=True, recovery_ms=3 * WAIT_MS)
    gate.open()
    gate.place()
    gate.token("a")
    gate.do(WorkerGone(D0, "it died"))
    refused = Refused(
        code="no_capacity", message="none is ready", request_id="r", attempt=2, retry_after_ms=9_000
    )
    gate.do(FromRouter(refused))
    until_over(gate)
    assert "none is ready" in gate.error().message


def test_what_the_router_said_last_is_the_reason_of_the_longest_wait_too() -> None:
    gate = Gate(recovery=True, recovery_ms=1e6, token_wait_ms_max=BOUND_MS)
    gate.open()
    gate.place()
    gate.do(WorkerGone(D0, "it died"))
    sentence = "the retry budget is used up"
    refused = Refused(
        code="retry_budget", message=sentence, request_id="r", attempt=2, retry_after_ms=10_000_000
    )
    gate.do(FromRouter(refused))
    assert until_over(gate) == 20.0
    assert gate.error().code is Code.RETRY_BUDGET
    assert gate.error().message == sentence


def test_a_worker_that_runs_on_after_the_end_was_not_told_and_is_told_again() -> None:
    """Its Abort was lost with a connection, and the Cancel with a router."""
    gate = Gate()
    gate.open()
    gate.place()
    gate.do(Closed("r", "gone"))
    gate.now += ABORT_SECONDS - 0.1
    assert gate.token("late") == []
    gate.now += 0.2
    assert sent(gate.token("later", 1)) == [(D0, "Abort")]
