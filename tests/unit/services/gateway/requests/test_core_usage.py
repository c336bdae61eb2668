"""What the router reports of P's cache is in the usage, the summary and the metrics of the key."""

from __future__ import annotations

import pytest

from common.messages import Delta, Prefilled, PriorityClass
from services.gateway.requests.events import FromRouter, Stepped
from tests.unit.services.gateway.gate import D0, Gate


def placed() -> Gate:
    gate = Gate()
    gate.open()
    gate.now = 5.0
    gate.place()
    return gate


def prefilled(gate: Gate, cached: int, attempt: int = 1, request_id: str = "r") -> None:
    message = Prefilled(request_id=request_id, attempt=attempt, cached_tokens=cached)
    assert gate.do(FromRouter(message)) == []


def ends(gate: Gate, index: int) -> None:
    gate.do(Stepped(D0, [Delta("r", 1, index, [65], "length")]))


@pytest.mark.parametrize("late", [False, True])
def test_what_p_had_in_its_cache_counts_as_cached(late: bool) -> None:
    gate = placed()
    if not late:
        prefilled(gate, 1)
    gate.do(Stepped(D0, [Delta("r", 1, 0, [65], cached_tokens=1, handed_over_tokens=1)]))
    if late:
        prefilled(gate, 1)
    ends(gate, 1)
    ending = gate.answers["r"].ending
    assert ending is not None
    assert ending.usage.cached == 1
    assert gate.summaries[-1].cached_tokens == 1
    assert gate.core.counters.of_model("m").by_key[""].cached == 1


def test_a_burst_is_one_message_of_its_class() -> None:
    gate = placed()
    gate.do(Stepped(D0, [Delta("r", 1, 0, [65, 66, 67])]))
    assert gate.core.counters.of_model("m").by_class == {}
    ends(gate, 3)
    assert gate.core.counters.of_model("m").by_class == {PriorityClass.STANDARD: (4, 2)}


def test_what_was_handed_over_is_paid_as_computed() -> None:
    gate = placed()
    gate.do(Stepped(D0, [Delta("r", 1, 0, [65], cached_tokens=1, handed_over_tokens=1)]))
    ends(gate, 1)
    assert gate.summaries[-1].cached_tokens == 0
    key = gate.core.counters.of_model("m").by_key[""]
    assert (key.input, key.cached) == (2, 0)


def test_a_report_of_another_attempt_or_request_counts_nothing() -> None:
    gate = placed()
    prefilled(gate, 1, attempt=2)
    prefilled(gate, 1, request_id="x")
    ends(gate, 0)
    assert gate.summaries[-1].cached_tokens == 0
