"""A request's legs: without a gap, whatever happens to it, and turned where they should be."""

from __future__ import annotations

import pytest

from common.messages import Failed, Journey, Refused
from services.gateway.events import Closed, DrainExpired, FromRouter, RouterDown, RouterUp
from services.gateway.legs import LEGS_MAX, Legs, Moment
from tests.unit.services.gateway.gate import D0, Gate


def way(journey: Journey) -> list[tuple[str, int, float]]:
    return [(leg.name, leg.attempt, round(leg.ms, 3)) for leg in journey.legs]


def lost(gate: Gate, attempt: int = 1) -> None:
    failed = Failed(request_id="r", attempt=attempt, code="worker_lost", message="d0 was lost")
    gate.do(FromRouter(failed))


def test_a_plain_request() -> None:
    gate = Gate()
    gate.now = 10.0
    gate.open()
    gate.now += 0.2
    gate.place()
    gate.now += 0.3
    gate.token("a")
    gate.now += 0.1
    gate.token("b", 1)
    gate.now += 0.4
    gate.token("c", 2, end="length")
    (journey,) = gate.journeys
    assert way(journey) == [
        ("intake", 1, 0.0),
        ("queue", 1, 200.0),
        ("placed", 1, 300.0),
        ("decode", 1, 500.0),
    ]
    assert (journey.outcome, journey.code, journey.completion_tokens) == ("ended", "", 3)
    assert journey.ttft_ms == pytest.approx(500.0)
    assert journey.itl_ms_max == pytest.approx(400.0)
    assert gate.core.requests.tally.itl.count == 2
    assert gate.core.requests.tally.ttft.count == 1


def test_the_silence_of_a_lost_worker_is_recovery() -> None:
    gate = Gate(recovery=True)
    gate.now = 10.0
    gate.open()
    gate.place()
    gate.token("a")
    gate.now += 0.7
    lost(gate)
    gate.now += 0.1
    gate.do(Closed("r", "gone"))
    (journey,) = gate.journeys
    assert way(journey)[-2:] == [("recovery", 1, 700.0), ("queue", 2, 100.0)]
    assert journey.outcome == "closed"
    assert gate.core.requests.tally.moves == {"resumed": 0, "failed": 1}


def test_waiting_for_a_router_is_held() -> None:
    gate = Gate(up=False)
    gate.now = 10.0
    gate.open()
    gate.now += 0.3
    gate.do(RouterUp())
    gate.now += 0.1
    gate.do(RouterDown())
    gate.now += 0.2
    gate.do(DrainExpired())
    (journey,) = gate.journeys
    assert way(journey) == [
        ("intake", 1, 0.0),
        ("held", 1, 300.0),
        ("queue", 1, 100.0),
        ("held", 1, 200.0),
    ]
    assert (journey.outcome, journey.code) == ("failed", "draining")


def test_a_first_token_that_is_the_last() -> None:
    gate = Gate()
    gate.now = 10.0
    gate.open()
    gate.place()
    gate.now += 0.3
    gate.token("a", end="stop", worker=D0)
    (journey,) = gate.journeys
    assert way(journey)[-2:] == [("placed", 1, 300.0), ("decode", 1, 0.0)]
    assert journey.ttft_ms == pytest.approx(300.0)


def test_what_the_router_refuses_at_once_is_not_reported_to_it() -> None:
    gate = Gate()
    gate.open()
    gate.do(FromRouter(Refused(code="queue_full", message="full", request_id="r", attempt=1)))
    assert gate.journeys == []
    assert gate.core.requests.tally.ends == {("failed", "queue_full"): 1}


def test_legs_are_bounded_and_still_sum_to_the_whole() -> None:
    moment = Moment(0.0)
    legs = Legs(moment, 0.0)
    for step in range(3 * LEGS_MAX):
        moment.now += 1.0
        legs.turn("held" if step % 2 else "queue", 1)
    told = legs.end()
    assert len(told) == LEGS_MAX
    assert sum(leg.ms for leg in told) == pytest.approx(moment.now * 1000)
