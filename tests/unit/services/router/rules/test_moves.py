"""Streams leave a worker that is to be empty, and take their KV along."""

from __future__ import annotations

from typing import Any

import pytest

from common.blocks import Kept, KvGroup
from common.errors import Code
from common.messages import (
    Abort,
    Decode,
    HandOver,
    Introduce,
    KvReport,
    Load,
    Move,
    Prefill,
)
from services.router.degradation.detector import Cause
from services.router.events import WorkerDrained
from services.router.rules.moves import CONNECT_SECONDS, KEPT_SHARE, MOVING_MAX
from tests.unit.services.router.rig import Rig

GATEWAY, P0, D0, D1 = "g0|1", "p0|1", "d0|1", "d1|1"
ALL = (GATEWAY, P0, D0, D1)


def fleet(
    streams: int = 1, *, resumable: bool = True, keep_seconds: float = 2.0, **more: Any
) -> Rig:
    """`r0` and so on stream on d0. `more`: of the decode workers."""
    rig = Rig(keep_seconds=keep_seconds)
    rig.gateway()
    rig.beat(rig.prefill(), Load())
    rig.beat(rig.decode("d0", **more), Load())
    for n in range(streams):
        rig.submit(f"r{n}", resumable=resumable)
        rig.prefilled(f"r{n}")
        rig.started(f"r{n}")
    rig.beat(rig.decode("d1", **more), Load())
    rig.sent.clear()
    return rig


def drain(rig: Rig, worker: str = D0) -> list[str]:
    """What is told to move when the worker is drained and all have been introduced."""
    rig.handle(WorkerDrained(worker, on=True))
    return moved(rig)


def moved(rig: Rig, seconds: float = CONNECT_SECONDS + 0.3) -> list[str]:
    rig.tick(seconds)
    return [move.request_id for move in rig.take(Move)]


def give_up(rig: Rig, request_id: str = "r0", code: Code = Code.MOVED) -> None:
    """d0 ends it and the gateway submits the next attempt."""
    rig.ended(request_id, error=code)
    submit_next(rig, request_id)


def submit_next(rig: Rig, request_id: str = "r0", **more: Any) -> None:
    rig.submit(request_id, 2, prompt=44, out=4, moved_from=D0, resumable=True, **more)


def handed(rig: Rig) -> HandOver:
    (order,) = rig.take(HandOver, D0)
    (decode,) = rig.take(Decode, D1)
    assert decode.ticket == order.ticket
    return order


def test_the_streams_of_a_drained_worker_move_when_the_others_have_connected() -> None:
    rig = fleet(2)
    rig.handle(WorkerDrained(D0, on=True))
    rig.tick()
    assert [peer.kv_address for peer in rig.take(Introduce, D1)] == [rig.row(D0).kv_address]
    assert moved(rig, 0.2) == []
    assert moved(rig) == ["r0", "r1"]
    assert moved(rig) == [], "each is told once"


def test_the_streams_of_a_worker_that_stops_move() -> None:
    rig = fleet()
    rig.leave(D0)
    assert moved(rig) == ["r0"]


def test_the_next_attempt_takes_its_kv_from_the_worker_that_it_left() -> None:
    rig = fleet()
    drain(rig)
    give_up(rig)
    order = handed(rig)
    ticket = order.ticket
    assert (order.kept_attempt, ticket.attempt) == (1, 2)
    assert (ticket.prefill, ticket.decode) == ("d0", "d1")
    assert ticket.kv_address == rig.row(D0).kv_address
    assert rig.take(Prefill) == []
    placement = rig.known("r0", 2).placement
    assert placement is not None
    assert "its KV comes from d0, where it ran" in placement.sentence
    assert rig.row(D1).queued_tokens == 1
    assert rig.core.tables.counts.moved == 1
    assert rig.core.tables.counts.placed_local == 0


def test_the_submit_may_overtake_the_end() -> None:
    """Over another connection. The worker must not be told to free what it keeps."""
    rig = fleet()
    drain(rig)
    submit_next(rig)
    assert rig.take(Abort) == []
    assert handed(rig).kept_attempt == 1
    rig.ended("r0", error=Code.MOVED)
    assert rig.state("r0", 1) == "cancelled"
    assert not rig.row(D0).held


def test_a_worker_that_is_left_for_its_silence_is_still_told_to_stop() -> None:
    rig = fleet()
    rig.submit("r0", 2, prompt=44, out=4, left=D0, resumable=True)
    assert [abort.attempt for abort in rig.take(Abort, D0)] == [1]


def test_a_move_is_no_failure_and_needs_no_retry_budget() -> None:
    rig = fleet()
    drain(rig)
    budget = rig.core.tables.admission.retry_budget
    while budget.take(1, rig.now):
        pass
    give_up(rig)
    assert rig.state("r0", 2) == "placed"
    assert rig.core.tables.counts.failed == 0


def test_nothing_is_learned_of_a_prompt_that_was_not_computed() -> None:
    rig = fleet()
    drain(rig)
    local, handoffs = rig.core.tables.estimates.local_prefill, rig.core.tables.estimates
    before = (local.count, handoffs.handoff_latency_s())
    give_up(rig)
    rig.started("r0", 2, peer=D1, kv=KvReport(blocks=1, retries=1))
    assert (local.count, handoffs.handoff_latency_s()) == before
    observed = rig.core.tables.degradation.observed
    assert (observed[Cause.UNREACHED], observed[Cause.RECOMPUTED]) == (1, 1), "those of the first"


def test_only_streams_that_their_gateway_can_continue_move() -> None:
    rig = fleet(resumable=False)
    assert drain(rig) == []


def test_a_stream_without_a_token_is_left_to_its_prefill() -> None:
    rig = fleet(0)
    rig.submit("q", resumable=True)
    worker = rig.known("q").decode
    assert drain(rig, worker) == []


def test_streams_stay_where_no_other_worker_has_room() -> None:
    rig = fleet(2, seqs=2)
    rig.submit("q", resumable=True)
    assert rig.known("q").decode == D1
    assert drain(rig) == ["r0"]


def test_streams_stay_while_others_wait() -> None:
    """Also where a stream would fit and what waits is too large."""
    rig = fleet(3)
    for n in range(2):
        rig.submit(f"q{n}", prompt=700, out=100, resumable=True)
    rig.submit("q2", prompt=800, out=100, resumable=True)
    assert len(rig.core.tables.waiting) == 1
    assert drain(rig) == []
    rig.cancel("q2")
    assert len(drain(rig)) == 3


def test_streams_stay_where_their_kv_has_no_room() -> None:
    rig = fleet(3)
    rig.gone(D1)
    rig.beat(rig.decode("d2", blocks=8), Load())
    assert len(drain(rig)) == 2


def test_streams_stay_where_the_others_take_shorter_texts_only() -> None:
    rig = fleet()
    rig.gone(D1)
    rig.beat(rig.decode("d2", max_model_len=47), Load())
    assert drain(rig) == []


def test_streams_leave_in_small_groups() -> None:
    rig = fleet(MOVING_MAX + 2, seqs=32, blocks=1_000)
    assert len(drain(rig)) == MOVING_MAX
    assert moved(rig) == []
    give_up(rig)
    assert len(moved(rig)) == 1


def test_a_worker_that_is_resumed_keeps_its_streams() -> None:
    rig = fleet()
    rig.handle(WorkerDrained(D0, on=True))
    rig.tick()
    rig.handle(WorkerDrained(D0, on=False))
    assert moved(rig) == []
    rig.take(Introduce)
    assert drain(rig) == ["r0"]
    assert len(rig.take(Introduce, D1)) == 1, "connections may be gone since"


def test_workers_of_another_fingerprint_get_no_streams() -> None:
    rig = fleet(0)
    rig.submit("r0", resumable=True)
    owner = rig.known("r0").decode
    rig.prefilled("r0")
    rig.started("r0", peer=owner)
    other = D1 if owner == D0 else D0
    rig.row(other).fingerprint = "other"
    rig.beat(other, Load())
    assert drain(rig, owner) == []


@pytest.mark.parametrize("case", ["gone", "late", "windows"])
def test_an_attempt_whose_kv_cannot_be_there_is_placed_as_any_other(case: str) -> None:
    rig = fleet(groups=(KvGroup(16, Kept.WINDOW, 20),)) if case == "windows" else fleet()
    drain(rig)
    rig.ended("r0", error=Code.MOVED)
    if case == "gone":
        rig.gone(D0)
    if case == "late":
        rig.handle(WorkerDrained(D1, on=True))
    submit_next(rig)
    if case == "late":
        rig.tick(KEPT_SHARE * 2.0 + 0.3, alive=ALL)
        rig.beat(rig.decode("d2"), Load())
    assert rig.take(HandOver) == []
    assert len(rig.take(Prefill, P0)) == 1


def test_an_attempt_that_waits_is_placed_by_its_kv_as_long_as_workers_keep_it() -> None:
    rig = fleet(keep_seconds=4.0)
    drain(rig)
    rig.ended("r0", error=Code.MOVED)
    rig.handle(WorkerDrained(D1, on=True))
    submit_next(rig)
    rig.tick(KEPT_SHARE * 4.0 - 0.5, alive=ALL)
    rig.beat(rig.decode("d2"), Load())
    assert len(rig.take(HandOver, D0)) == 1


def test_what_was_refused_in_between_is_late_since_it_left() -> None:
    """Its KV is kept from the end of the attempt that left, not from the latest Submit."""
    rig = fleet()
    drain(rig)
    rig.ended("r0", error=Code.MOVED)
    rig.tick(KEPT_SHARE * 2.0 + 0.3, alive=ALL)
    submit_next(rig)
    assert rig.take(HandOver) == []
    assert rig.known("r0", 2).placement is not None


def test_a_stream_that_comes_back_to_its_worker_takes_nothing_from_it() -> None:
    """No other is there any more. The blocks may still be in its prefix cache."""
    rig = fleet()
    drain(rig)
    rig.ended("r0", error=Code.MOVED)
    rig.handle(WorkerDrained(D0, on=False))
    rig.gone(D1)
    rig.beat(D0, Load())
    submit_next(rig)
    assert rig.known("r0", 2).decode == D0
    (decode,) = rig.take(Decode, D0)
    assert (rig.take(HandOver), decode.ticket) == ([], None)


def test_kv_of_another_fingerprint_is_not_asked_for() -> None:
    rig = fleet()
    drain(rig)
    rig.ended("r0", error=Code.MOVED)
    rig.row(D1).fingerprint = "other"
    rig.beat(D1, Load())
    submit_next(rig)
    (decode,) = rig.take(Decode, D1)
    assert (rig.take(HandOver), decode.ticket) == ([], None)


def test_streams_of_windowed_layers_stay() -> None:
    """They would be computed again from their first token."""
    assert drain(fleet(groups=(KvGroup(16, Kept.WINDOW, 20),))) == []
