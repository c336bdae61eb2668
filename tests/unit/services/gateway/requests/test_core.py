"""The gateway's decisions, without sockets: who is told what, and that every answer ends once."""

from __future__ import annotations

import pytest

from common.errors import Code
from common.messages import Abandoned, Abort, Cancel, Failed, Fleet, Live, Placed, Refused, Submit
from common.net.wire import unpack_ids
from common.transitions import IllegalTransitionError
from services.gateway.requests.events import (
    Attended,
    Closed,
    DrainExpired,
    DrainStarted,
    FromRouter,
    RouterDown,
    RouterUp,
    Tick,
    ToRouter,
    ToWorker,
    WorkerGone,
    WorkerUp,
)
from services.gateway.requests.request import TERMINAL, TRANSITIONS, State
from services.gateway.requests.table import RECENT_MAX
from tests.unit.services.gateway.gate import D0, D1, Gate, sent


def test_a_request_from_submit_to_end(gate: Gate) -> None:
    (submit,) = gate.open()
    assert isinstance(submit, ToRouter)
    assert isinstance(submit.message, Submit)
    assert (submit.message.attempt, submit.message.prompt_tokens) == (1, 2)
    assert submit.body is not None
    assert unpack_ids(submit.body.prompt_ids) == [1, 2]
    assert gate.place() == []
    assert gate.core.busy_workers() == [D0]
    assert gate.token("a") == []
    assert gate.token("b", 1, end="length") == []
    assert gate.answers["r"].joined_text == "ab"
    assert (gate.core.active, gate.core.busy_workers()) == (0, [])


def test_tokens_may_overtake_placed(gate: Gate) -> None:
    gate.open()
    gate.token("a", worker=D1)
    assert gate.core.busy_workers() == [D1]
    gate.place(decode="d1")
    assert sent(gate.do(Closed("r", "gone"))) == [(D1, "Abort"), "Cancel"]


def test_only_the_first_token_can_name_the_worker(gate: Gate) -> None:
    gate.open()
    gate.token("a", index=3, worker=D1)
    assert gate.core.busy_workers() == []
    gate.place()
    gate.token("x", worker=D1)
    gate.token("a")
    assert gate.core.counters.stale == 2
    assert gate.answers["r"].joined_text == "a"


def test_a_stop_string_tells_worker_and_router(gate: Gate) -> None:
    gate.open(stop="b")
    gate.place()
    assert sent(gate.token("abc")) == [(D0, "Abort"), "Cancel"]
    assert gate.token("late", 3) == []
    assert gate.core.counters.unknown == 1


def test_a_stop_string_in_the_last_token_tells_nobody(gate: Gate) -> None:
    gate.open(stop="b")
    gate.place()
    assert sent(gate.token("ab", end="length")) == []


def test_tokens_for_nobody_are_aborted_unless_they_are_the_last(gate: Gate) -> None:
    assert sent(gate.token("a")) == [(D0, "Abort")]
    assert sent(gate.token("a", end="stop")) == []


def test_closing_in_each_state() -> None:
    held, submitted, placed = Gate(up=False), Gate(), Gate()
    for gate in (held, submitted, placed):
        gate.open()
    placed.place()
    assert sent(held.do(Closed("r", "gone"))) == []
    assert sent(submitted.do(Closed("r", "gone"))) == ["Cancel"]
    assert sent(placed.do(Closed("r", "gone"))) == [(D0, "Abort"), "Cancel"]
    assert sent(placed.do(Closed("r", "gone"))) == []


def test_a_refusal_keeps_code_and_retry_after(gate: Gate) -> None:
    gate.open()
    refused = Refused(
        code="queue_full", message="full", request_id="r", attempt=1, retry_after_ms=5
    )
    assert sent(gate.do(FromRouter(refused))) == []
    assert (gate.error().code, gate.error().retry_after_ms) == (Code.QUEUE_FULL, 5)


@pytest.mark.parametrize("attempt", [0, 2])
def test_another_attempts_messages_are_nothing(attempt: int, gate: Gate) -> None:
    gate.open()
    for message in (
        Refused(code="queue_full", message="", request_id="r", attempt=attempt),
        Failed(request_id="r", attempt=attempt, code="worker_lost", message=""),
        Placed(request_id="r", attempt=attempt, decode="d", decode_incarnation="1"),
    ):
        assert gate.do(FromRouter(message)) == []
    assert gate.core.active == 1
    assert gate.core.busy_workers() == []


def test_a_refusal_after_tokens_is_too_late(gate: Gate) -> None:
    gate.open()
    gate.token("a")
    gate.do(FromRouter(Refused(code="queue_full", message="", request_id="r", attempt=1)))
    assert gate.core.active == 1


def test_a_lost_worker_fails_only_its_own(gate: Gate) -> None:
    for request_id, decode in (("r", "d0"), ("s", "d1")):
        gate.open(request_id)
        gate.place(request_id, decode)
    assert sent(gate.do(WorkerGone(D0, "dead"))) == ["Cancel"]
    assert gate.error("r").code is Code.WORKER_LOST
    assert gate.core.active == 1


def test_a_second_hello_fails_what_had_spoken_and_spares_the_placed(gate: Gate) -> None:
    gate.open("r")
    gate.open("s")
    gate.place("r")
    gate.place("s")
    gate.token("a")
    assert sent(gate.do(WorkerUp(D0))) == [(D0, "Abort"), "Cancel"]
    assert gate.core.active == 1
    assert gate.answers["s"].error is None


# ---------------------------------------------------------------- router lost


def test_without_a_router_work_is_held_for_a_while() -> None:
    gate = Gate(up=False)
    assert gate.open() == []
    gate.now = 0.9
    gate.do(Tick())
    assert gate.core.active == 1
    gate.now = 1.0
    gate.do(Tick())
    assert gate.error().code is Code.ROUTER_UNREACHABLE


def test_what_has_not_spoken_is_submitted_again_and_what_streams_is_not(gate: Gate) -> None:
    """An order to D may have died with the router; a stream proves that it did not."""
    for name in ("p", "q", "r"):
        gate.open(name)
    gate.place("p")
    gate.place("r")
    gate.token("a")
    gate.now = 5.0
    gate.do(RouterDown())
    gate.now = 5.9
    gate.do(Tick())
    assert gate.core.active == 3
    again = gate.do(RouterUp())
    submits = [
        a.message for a in again if isinstance(a, ToRouter) and isinstance(a.message, Submit)
    ]
    assert [(s.request_id, s.attempt) for s in submits] == [("p", 1), ("q", 1)]
    assert gate.core.live() == Live(attempts=(("p", 1), ("q", 1), ("r", 1)), complete=True)


def test_a_router_that_is_back_is_told_which_streams_nobody_reads(gate: Gate) -> None:
    gate.open()
    gate.place()
    gate.token("a")
    gate.do(RouterDown())
    assert gate.do(Attended("r", attended=False)) == []
    assert gate.do(RouterUp()) == [ToRouter(Abandoned(request_id="r", attempt=1))]
    gate.do(Attended("r", attended=True))
    assert gate.do(RouterUp()) == []


@pytest.mark.parametrize("attended", [True, False])
def test_a_stream_whose_client_has_left_is_submitted_as_one_that_nobody_reads(
    gate: Gate, attended: bool
) -> None:
    (submit,) = gate.open(attended=attended)
    assert isinstance(submit, ToRouter)
    assert isinstance(submit.message, Submit)
    assert submit.message.abandoned is not attended
    gate.place()
    gate.do(RouterDown())
    gate.do(Attended("r", attended=True))
    (again,) = gate.do(RouterUp())
    assert isinstance(again, ToRouter)
    assert isinstance(again.message, Submit)
    assert not again.message.abandoned, "its client came back"


def resubmitted() -> Gate:
    """`r` was placed on D0, and submitted again to a new router."""
    gate = Gate()
    gate.open()
    gate.place()
    gate.do(RouterDown())
    gate.do(RouterUp())
    return gate


def test_a_new_router_may_find_it_where_it_is() -> None:
    gate = resubmitted()
    gate.place(decode="d0")
    gate.token("a", worker=D0)
    assert gate.answers["r"].joined_text == "a"


def test_a_new_router_may_place_it_elsewhere_and_the_other_is_told_to_stop() -> None:
    gate = resubmitted()
    gate.place(decode="d1")
    assert gate.core.busy_workers() == [D1]
    assert sent(gate.token("x", worker=D0)) == [(D0, "Abort")]
    gate.token("a", worker=D1)
    assert gate.answers["r"].joined_text == "a"


def test_the_first_to_speak_is_listened_to_whatever_is_said_of_placement() -> None:
    gate = resubmitted()
    gate.token("a", worker=D1)
    gate.place(decode="d0")
    assert gate.core.busy_workers() == [D1]
    assert sent(gate.token("x", worker=D0)) == [(D0, "Abort")]


def test_a_worker_lost_before_it_spoke_is_the_new_routers_affair() -> None:
    gate = resubmitted()
    assert gate.do(WorkerGone(D0, "gone")) == []
    assert gate.core.active == 1
    gate.place(decode="d1")
    gate.token("a", worker=D1, end="length")
    assert gate.answers["r"].joined_text == "a"


def test_the_end_of_what_was_submitted_twice_is_told_to_routers_and_stray_workers() -> None:
    gate = resubmitted()
    assert sent(gate.token("a", worker=D0, end="length")) == ["Cancel"]
    assert sent(gate.token("x", worker=D1)) == [(D1, "Abort")]


def declined(gate: Gate, attempt: int) -> object:
    failed = Failed(request_id="r", attempt=attempt, code="no_capacity", message="full")
    return sent(gate.do(FromRouter(failed)))


def test_what_d_declined_before_it_began_is_submitted_anew_and_not_for_ever(gate: Gate) -> None:
    gate.open()
    for attempt in (1, 2, 3):
        placed = Placed(request_id="r", attempt=attempt, decode="d0", decode_incarnation="1")
        gate.do(FromRouter(placed))
        last = attempt == 3
        assert declined(gate, attempt) == ([(D0, "Abort")] if last else ["Submit"])
    assert gate.error().code is Code.NO_CAPACITY


def test_what_has_spoken_is_not_submitted_anew(gate: Gate) -> None:
    gate.open()
    gate.place()
    gate.token("a")
    assert declined(gate, 1) == [(D0, "Abort")]
    assert gate.error().code is Code.STREAM_INTERRUPTED


def test_a_worker_whose_failed_request_goes_on_is_told_to_stop(gate: Gate) -> None:
    """It may not have been connected when the request failed."""
    gate.open()
    gate.place()
    gate.do(FromRouter(Failed(request_id="r", attempt=1, code="worker_lost", message="")))
    assert sent(gate.token("a")) == [(D0, "Abort")]


def test_a_resubmission_that_is_refused_stops_the_worker() -> None:
    gate = resubmitted()
    refused = Refused(code="queue_full", message="full", request_id="r", attempt=1)
    assert sent(gate.do(FromRouter(refused))) == [(D0, "Abort"), "Cancel"]


def test_cancels_owed_to_a_lost_router_are_paid_on_its_return(gate: Gate) -> None:
    gate.open()
    gate.do(RouterDown())
    gate.do(Closed("r", "gone"))
    assert sent(gate.do(RouterUp())) == ["Cancel"]
    assert sent(gate.do(RouterUp())) == []


def test_a_deadline_that_passes_while_held() -> None:
    gate = Gate(up=False)
    gate.open(deadline_ms=500)
    gate.now = 0.5
    gate.do(Tick())
    assert gate.error().code is Code.DEADLINE_EXCEEDED


def test_a_held_request_submits_the_time_that_remains() -> None:
    gate = Gate(up=False)
    gate.open(deadline_ms=900)
    gate.now = 0.4
    (submit,) = gate.do(RouterUp())
    assert isinstance(submit, ToRouter)
    assert isinstance(submit.message, Submit)
    assert submit.message.deadline_ms == pytest.approx(500)


# ---------------------------------------------------------------- bounds, drain, fleet


def test_max_streams() -> None:
    gate = Gate(max_streams=1)
    gate.open("r")
    assert gate.open("s") == []
    assert gate.error("s").code is Code.QUEUE_FULL
    assert gate.error("s").retry_after_ms


def test_what_just_ended_is_remembered_in_bounds(gate: Gate) -> None:
    for nth in range(RECENT_MAX + 10):
        gate.open(str(nth))
        gate.do(Closed(str(nth), ""))


def test_drain(gate: Gate) -> None:
    gate.open("r")
    gate.place("r")
    gate.do(DrainStarted())
    gate.open("s")
    assert gate.error("s").code is Code.DRAINING
    assert sent(gate.do(DrainExpired())) == [(D0, "Abort"), "Cancel"]
    assert gate.error("r").code is Code.DRAINING


def test_a_restarted_router_does_not_make_the_length_unknown(gate: Gate) -> None:
    known = Fleet(ready=True, prefill_ready=1, decode_ready=1, max_model_len=99)
    gate.do(FromRouter(known))
    unknown = Fleet(ready=False, prefill_ready=0, decode_ready=0, max_model_len=0)
    gate.do(FromRouter(unknown))
    fleet = gate.core.fleet_of("m")
    assert fleet is not None
    assert (fleet.ready, fleet.max_model_len) == (False, 99)


def test_no_state_is_left_from_a_terminal_one(gate: Gate) -> None:
    gate.open()
    (request,) = gate.core._table.requests.values()
    gate.do(Closed("r", ""))
    assert request.state in TERMINAL
    for state in State:
        with pytest.raises(IllegalTransitionError):
            request.move(state, gate.now)
    assert {state for state, after in TRANSITIONS.items() if not after} == TERMINAL


def test_the_messages_that_leave_carry_the_attempt(gate: Gate) -> None:
    gate.open()
    gate.place()
    abort, cancel, _ = gate.do(Closed("r", "gone"))
    assert isinstance(abort, ToWorker)
    assert abort.message == Abort(request_id="r", attempt=1, reason="gone")
    assert isinstance(cancel, ToRouter)
    assert cancel.message == Cancel(request_id="r", attempt=1, reason="gone")


def test_each_model_of_the_fleet_is_told_apart(gate: Gate) -> None:
    """The gate's requests ask for `m`."""
    mine = Fleet(ready=True, prefill_ready=1, decode_ready=2, max_model_len=99, model="m")
    other = Fleet(ready=False, prefill_ready=0, decode_ready=0, max_model_len=7, model="n")
    gate.do(FromRouter(mine))
    assert sent(gate.do(FromRouter(other))) == []
    assert (gate.core.fleet_of("m"), gate.core.fleet_of("n")) == (mine, other)
    assert gate.core.fleet_of("o") is None
    unnamed = Fleet(ready=False, prefill_ready=0, decode_ready=0, max_model_len=5)
    gate.do(FromRouter(unnamed))
    assert gate.core.fleet_of("m") == gate.core.fleet_of("n") == unnamed


def test_a_submit_names_the_model(gate: Gate) -> None:
    (action,) = gate.open("s")
    assert isinstance(action, ToRouter)
    assert isinstance(action.message, Submit)
    assert action.message.model == "m"
