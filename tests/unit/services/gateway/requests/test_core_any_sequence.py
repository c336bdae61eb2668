"""Any sequence of events keeps the core's invariants and ends every answer exactly once."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from common.messages import Delta, Failed, Placed, Refused
from services.gateway.requests.events import (
    Closed,
    DrainExpired,
    Event,
    FromRouter,
    RouterDown,
    RouterUp,
    Stepped,
    Tick,
    WorkerGone,
    WorkerUp,
)
from tests.unit.services.gateway.gate import D0, D1, Gate, Once

IDS = st.sampled_from(["r", "s", "t"])
WORKERS = st.sampled_from([D0, D1])
DELTAS = st.builds(
    Delta,
    IDS,
    st.integers(0, 2),
    st.integers(0, 3),
    st.lists(st.integers(97, 99), max_size=2),
    finish_reason=st.sampled_from(["", "", "stop", "length"]),
    error=st.sampled_from(["", "", "", "no_capacity", "?"]),
)
MESSAGES = st.one_of(
    st.builds(
        Placed,
        request_id=IDS,
        attempt=st.integers(1, 2),
        decode=st.sampled_from(["d0", "d1"]),
        decode_incarnation=st.just("1"),
    ),
    st.builds(
        Refused,
        request_id=IDS,
        attempt=st.integers(1, 2),
        code=st.sampled_from(["queue_full", "?"]),
        message=st.just(""),
    ),
    st.builds(
        Failed,
        request_id=IDS,
        attempt=st.integers(1, 2),
        code=st.just("worker_lost"),
        message=st.just(""),
    ),
)
EVENTS = st.one_of(
    IDS,
    st.builds(Closed, IDS, st.just("x")),
    st.just(RouterUp()),
    st.just(RouterDown()),
    st.builds(FromRouter, MESSAGES),
    st.builds(WorkerUp, WORKERS),
    st.builds(WorkerGone, WORKERS, st.just("x")),
    st.builds(Stepped, WORKERS, st.lists(DELTAS, max_size=3)),
    st.builds(Stepped, WORKERS, st.lists(DELTAS, max_size=3)),
    st.just(Tick()),
)


@settings(max_examples=300)
@given(st.lists(EVENTS, max_size=40), st.booleans(), st.booleans())
def test_any_sequence_keeps_the_invariants_and_ends_every_answer(
    events: list[Event | str], up: bool, recovery: bool
) -> None:
    gate = Gate(up=up, max_streams=2, recovery=recovery)
    opened = 0
    answers: list[Once] = []
    for event in events:
        gate.now += 0.3
        if not isinstance(event, str):
            gate.do(event)
            continue
        opened += 1
        request_id = event if event not in gate.core._table.requests else f"{event}{opened}"
        gate.open(request_id, stop="ab")
        answers.append(gate.answers[request_id])
    gate.do(DrainExpired())
    assert gate.core.active == 0
    closed = gate.core.counters.closed
    assert sum(answer.ends for answer in answers) + closed == len(answers)
