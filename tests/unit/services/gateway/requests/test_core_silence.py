"""A placed request that stays silent is asked for again: only the router knows its fate."""

from __future__ import annotations

from common.errors import Code
from common.messages import Failed
from services.gateway.requests.events import FromRouter, RouterDown, Tick
from tests.unit.services.gateway.gate import WAIT_MS, Gate, sent

WAIT = WAIT_MS / 1000


def placed() -> Gate:
    gate = Gate()
    gate.open()
    gate.now = 5.0
    gate.place()
    return gate


def test_silence_after_placement_is_asked_about_once_per_wait() -> None:
    gate = placed()
    gate.now += WAIT - 0.01
    assert gate.do(Tick()) == []
    gate.now += 0.02
    assert sent(gate.do(Tick())) == ["Submit"]
    assert gate.do(Tick()) == []
    gate.now += WAIT
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
