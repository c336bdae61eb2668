"""A stream that moves gets the tokens of the step that its engine is in, and then ends."""

from __future__ import annotations

import pytest

from common.engine.port import Batch, Output
from common.errors import Code
from common.messages import Abort, Ended, HandOver, Move
from common.worker.actions import (
    AbortInEngine,
    DrainOver,
    Event,
    GatewayGone,
    HandOverKept,
    LeaveEngine,
)
from tests.rigs import messages
from tests.rigs.messages import kv_done
from tests.unit.services.decode.test_decode_core import (
    Bench,
    deltas,
    dispatch,
    step,
    to_router,
)


@pytest.fixture
def bench() -> Bench:
    return Bench()


def test_at_the_end_of_a_drain_its_streams_are_told_to_go_on_elsewhere(bench: Bench) -> None:
    bench(dispatch("r"))
    bench(dispatch("s", gateway="g1"))
    bench(step(Output("r#1", [10, 11])))
    actions = bench(DrainOver("d0 is stopping"))
    assert actions[:2] == [LeaveEngine("r", 1), AbortInEngine("s", 1)]
    assert bench.core.active == 1, "r gets the tokens of the step that runs"
    actions += bench(Batch(outputs=[Output("r#1", [12])], left=["r#1"]))
    assert [(d.request_id, d.index, d.token_ids, d.error) for d in deltas(actions)] == [
        ("s", 0, [], Code.DRAINING),
        ("r", 2, [12], ""),
        ("r", 3, [], Code.DRAINING),
    ]
    ends = [m for m in to_router(actions) if isinstance(m, Ended)]
    assert [(e.request_id, e.error) for e in ends] == [("s", Code.DRAINING), ("r", Code.DRAINING)]
    assert bench.core.active == 1, "the KV of r may still be taken"
    assert bench(DrainOver("again")) == []
    bench(Batch(kv_done=[kv_done("s", side="send"), kv_done("r", side="receive")]))
    assert bench.core.active == 1
    bench(Batch(kv_done=[kv_done("r", side="send")]))
    assert bench.core.active == 0


def test_a_stream_that_moves_ends_after_its_last_token_and_keeps_its_kv(bench: Bench) -> None:
    bench(dispatch("r"))
    bench(step(Output("r#1", [10, 11, 12])))
    move = Move(request_id="r", attempt=1, reason="d0 is drained")
    assert bench(move) == [LeaveEngine("r", 1)]
    assert bench(move) == bench(DrainOver("and d0 stops")) == []
    (delta,) = deltas(bench(step(Output("r#1", [13]))))
    assert (delta.index, delta.token_ids, delta.error) == (3, [13], "")
    actions = bench(Batch(left=["r#1"]))
    (delta,) = deltas(actions)
    assert (delta.index, delta.token_ids, delta.error) == (4, [], Code.MOVED)
    (ended,) = [m for m in to_router(actions) if isinstance(m, Ended)]
    assert (ended.error, ended.completion_tokens) == (Code.MOVED, 4)
    assert bench(step(Output("r#1", [14]))) == bench(move) == bench(Batch(left=["r#1"])) == []
    to_d1 = messages.ticket("r", 2, prefill="d0", decode="d1")
    assert bench(HandOver(ticket=to_d1, kept_attempt=1)) == [HandOverKept(to_d1, 1)]
    assert bench.core.active == 1
    bench(Batch(kv_done=[kv_done("r", side="send")]))
    assert bench.core.active == 0


def test_at_the_very_end_of_a_drain_no_step_is_waited_for(bench: Bench) -> None:
    for name in ("r", "s", "t"):
        bench(dispatch(name))
    bench(step(Output("r#1", [10]), Output("s#1", [20])))
    bench(Move(request_id="r", attempt=1, reason="d0 is drained"))
    sent = deltas(bench(DrainOver("d0 is stopping", at_once=True)))
    told = [(d.request_id, d.index, d.token_ids, d.error) for d in sent]
    codes = Code.MOVED, Code.DRAINING, Code.DRAINING
    assert told == [("r", 1, [], codes[0]), ("s", 1, [], codes[1]), ("t", 0, [], codes[2])]
    assert bench(Batch(left=["r#1", "s#1"])) == []
    assert bench.core.active == 0


@pytest.mark.parametrize(
    "event",
    [
        step(Output("r#1", [11], "stop", 11)),
        Abort(request_id="r", attempt=1, reason="client gone"),
        GatewayGone("g0", "k", "closed"),
    ],
)
def test_a_stream_that_ends_before_it_has_left_keeps_nothing(bench: Bench, event: Event) -> None:
    bench(dispatch("r"))
    bench(step(Output("r#1", [10])))
    bench(Move(request_id="r", attempt=1, reason="d0 is drained"))
    (ended,) = [m for m in to_router(bench(event)) if isinstance(m, Ended)]
    assert ended.error != Code.MOVED
    assert (bench(Batch(left=["r#1"])), bench.core.active) == ([], 0)


def test_the_last_tokens_of_all_streams_leave_before_the_ends_of_some(bench: Bench) -> None:
    bench(dispatch("r"))
    bench(dispatch("s"))
    bench(step(Output("r#1", [10]), Output("s#1", [20])))
    bench(Move(request_id="r", attempt=1, reason="d0 is drained"))
    last = [Output("r#1", [11]), Output("s#1", [21])]
    sent = deltas(bench(Batch(outputs=last, left=["r#1"])))
    told = [(d.request_id, d.index, d.token_ids, d.error) for d in sent]
    assert told == [("r", 1, [11], ""), ("s", 1, [21], ""), ("r", 2, [], Code.MOVED)]
    assert bench(Batch(left=["s#1"])) == [], "nobody told it to leave"
