"""Where each live request is, how many of a key are there, and for which cells a tick is."""

from typing import cast

import pytest

from common.messages import Sampling
from services.gateway.api.kinds import Kind, RequestSpec
from services.gateway.auth.caller import Caller
from services.gateway.requests.live_index import LiveIndex
from services.gateway.requests.request import LiveRequest, State
from services.gateway.requests.stalls import STALL_SECONDS_MIN
from services.gateway.streams.answer import FailureListener, TokenStream
from services.gateway.streams.phase_timer import PhaseTimer

TOKEN_WAIT = 30.0
NONE = set[str]()


def live(request_id: str, key: str = "k", state: State = State.STREAMING) -> LiveRequest:
    """It came at 1 s, had a token at 10 s, and is to be asked for again at 12 s."""
    request = LiveRequest(
        spec=RequestSpec(Kind.CHAT, request_id, "m", 0, [1], Sampling(max_tokens=5)),
        stream=cast("TokenStream", None),
        answer=cast("FailureListener", None),
        caller=Caller(key_id=key),
        opened=1.0,
        hold_until=100.0,
        deadline=0.0,
        timer=PhaseTimer(1.0),
        state=state,
        ask_at=12.0,
    )
    request.timer.last_token = 10.0
    return request


def test_requests_are_counted_by_cell_and_key() -> None:
    index = LiveIndex()
    index.add(live("r0"), "c0")
    index.add(live("r1"), "c0")
    index.add(live("r2"), "c1")
    index.add(live("r3", key=""), "c1")
    assert len(index) == 4
    assert (index.cell_of("r2"), index.cell_of("r9")) == ("c1", None)
    assert (index.of_key("c0", "k"), index.of_key("c1", "k"), index.of_key("c2", "k")) == (2, 1, 0)
    assert index.of_key("c1", "") == 0
    index.check_invariants()


def test_nothing_is_left_of_what_is_over() -> None:
    index = LiveIndex()
    requests = [live("r0"), live("r1")]
    for request in requests:
        index.add(request, "c0")
    index.remove(requests[0])
    assert index.of_key("c0", "k") == 1
    index.remove(requests[1])
    assert (len(index), index.of_key("c0", "k"), index._of_key) == (0, 0, {})
    index.check_invariants()


@pytest.mark.parametrize(
    ("state", "not_yet", "due"),
    [
        (State.STREAMING, 10.0 + STALL_SECONDS_MIN - 0.01, 10.0 + STALL_SECONDS_MIN),
        (State.SUBMITTED, 11.99, 12.0),
        (State.PLACED, 11.99, 12.0),
    ],
)
def test_a_tick_is_for_the_cell_of_what_time_may_change(
    state: State, not_yet: float, due: float
) -> None:
    index = LiveIndex()
    index.add(live("r0", state=state), "c0")
    assert index.take_due(not_yet, TOKEN_WAIT, late=False) == NONE
    assert index.take_due(due, TOKEN_WAIT, late=False) == {"c0"}


def test_what_has_no_router_is_always_due() -> None:
    index = LiveIndex()
    index.add(live("r0", state=State.HELD), "c0")
    assert index.take_due(1.0, TOKEN_WAIT, late=False) == {"c0"}


@pytest.mark.parametrize("state", [State.STREAMING, State.SUBMITTED, State.PLACED])
def test_what_has_waited_for_as_long_as_it_may_is_due(state: State) -> None:
    index = LiveIndex()
    request = live("r0", state=state)
    request.ask_at = 1e9
    index.add(request, "c0")
    assert index.take_due(10.4, 0.5, late=False) == NONE
    assert index.take_due(10.5, 0.5, late=False) == {"c0"}


def test_a_late_tick_is_for_all_cells_with_requests() -> None:
    index = LiveIndex()
    index.add(live("r0"), "c0")
    index.add(live("r1"), "c1")
    assert index.take_due(10.1, TOKEN_WAIT, late=True) == {"c0", "c1"}


def test_a_cell_that_a_request_has_left_gets_one_more_tick() -> None:
    index = LiveIndex()
    request = live("r0")
    index.add(request, "c0")
    index.remove(request)
    assert index.take_due(10.1, TOKEN_WAIT, late=False) == {"c0"}
    assert index.take_due(10.2, TOKEN_WAIT, late=False) == NONE
