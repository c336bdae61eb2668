"""The phases in a request's summary follow its states, without a gap."""

from __future__ import annotations

import pytest

from common.messages import Failed, Refused, RequestSummary
from services.gateway.requests.events import Closed, DrainExpired, FromRouter, RouterDown, RouterUp
from tests.unit.services.gateway.gate import D0, Gate


def spans(summary: RequestSummary) -> list[tuple[str, int, float]]:
    return [(leg.name, leg.attempt, round(leg.ms, 3)) for leg in summary.legs]


def lost(gate: Gate, attempt: int = 1) -> None:
    failed = Failed(request_id="r", attempt=attempt, code="worker_lost", message="d0 was lost")
    gate.do(FromRouter(failed))


def test_a_plain_request(gate: Gate) -> None:
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
    (summary,) = gate.summaries
    assert spans(summary) == [
        ("intake", 1, 0.0),
        ("queue", 1, 200.0),
        ("placed", 1, 300.0),
        ("decode", 1, 500.0),
    ]
    assert (summary.outcome, summary.code, summary.completion_tokens) == ("ended", "", 3)
    assert summary.ttft_ms == pytest.approx(500.0)
    assert summary.itl_ms_max == pytest.approx(400.0)
    assert gate.core.counters.of_model("m").itl.count == 2
    assert gate.core.counters.of_model("m").ttft.count == 1


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
    (summary,) = gate.summaries
    assert spans(summary)[-2:] == [("recovery", 1, 700.0), ("queue", 2, 100.0)]
    assert summary.outcome == "closed"
    assert gate.core.counters.of_model("m").migrations == {"resumed": 0, "failed": 1}


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
    (summary,) = gate.summaries
    assert spans(summary) == [
        ("intake", 1, 0.0),
        ("held", 1, 300.0),
        ("queue", 1, 100.0),
        ("held", 1, 200.0),
    ]
    assert (summary.outcome, summary.code) == ("failed", "draining")


def test_a_first_token_that_is_the_last(gate: Gate) -> None:
    gate.now = 10.0
    gate.open()
    gate.place()
    gate.now += 0.3
    gate.token("a", end="stop", worker=D0)
    (summary,) = gate.summaries
    assert spans(summary)[-2:] == [("placed", 1, 300.0), ("decode", 1, 0.0)]
    assert summary.ttft_ms == pytest.approx(300.0)


def test_what_the_router_refuses_at_once_is_not_reported_to_it(gate: Gate) -> None:
    gate.open()
    gate.do(FromRouter(Refused(code="queue_full", message="full", request_id="r", attempt=1)))
    assert gate.summaries == []
    assert gate.core.counters.of_model("m").ends == {("failed", "queue_full"): 1}
