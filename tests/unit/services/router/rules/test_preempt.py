"""Who makes room for whom: streams that nobody reads, and the newest of the lowest class."""

from __future__ import annotations

from typing import Any

import pytest

from common.messages import (
    Abandoned,
    Abort,
    Ended,
    Failed,
    HandOver,
    Load,
    Move,
    PriorityClass,
    Submit,
)
from services.router.events import Send
from services.router.fleet.trials import Trial
from services.router.records.move import MoveOutcome, MoveReason
from services.router.records.states import AttemptState
from services.router.rules import admit, moves, preempt
from tests.unit.services.router.rig import Rig


def submit(rig: Rig, request_id: str, attempt: int = 1, **fields: Any) -> None:
    usual: dict[str, Any] = {"prompt_tokens": 40, "max_tokens": 8, "resumable": True}
    message = Submit(request_id=request_id, attempt=attempt, **(usual | fields))
    rig.receive("g0|1", message, b"body")


def full(count: int = 4, **fields: Any) -> Rig:
    """One decode worker, all of whose slots stream `r0`, `r1` and so on."""
    rig = Rig(remote_prefill="never")
    rig.gateway()
    rig.beat(rig.decode("d0", seqs=count), Load())
    for n in range(count):
        submit(rig, f"r{n}", **fields)
        rig.started(f"r{n}")
    return rig


def leave(rig: Rig, *names: str, back: bool = False) -> None:
    for name in names:
        rig.receive("g0|1", Abandoned(request_id=name, attempt=1, abandoned=not back))


def pass_time(rig: Rig) -> None:
    rig.tick(0.2, alive=("g0|1", "d0|1"))


def preempted(rig: Rig) -> list[str]:
    pass_time(rig)
    return [failed.request_id for failed in rig.take(Failed) if failed.code == "preempted"]


def test_a_plain_request_takes_the_place_of_the_newest_stream_that_nobody_reads() -> None:
    rig = full()
    leave(rig, "r0", "r1", "r2")
    assert preempted(rig) == [], "nobody waits"
    submit(rig, "x", tenant="other")
    rig.take(Abort)
    assert preempted(rig) == ["r2"]
    assert [abort.request_id for abort in rig.take(Abort, "d0|1")] == ["r2"]
    assert preempted(rig) == [], "one is making room already"
    rig.receive("d0|1", Ended(request_id="r2", attempt=1, error="cancelled"))
    assert rig.core.tables.attempts["x", 1].state is AttemptState.PLACED


def test_as_many_make_room_as_wait() -> None:
    rig = full(6)
    leave(rig, *(f"r{n}" for n in range(6)))
    for n in range(4):
        submit(rig, f"x{n}")
    assert preempted(rig) == ["r5", "r4", "r3", "r2"]


def test_a_stream_that_has_its_client_again_stays() -> None:
    rig = full()
    leave(rig, "r0", "r1")
    leave(rig, "r0", "r1", back=True)
    submit(rig, "x")
    assert preempted(rig) == []


@pytest.mark.parametrize("abandoned", [False, True])
def test_a_repeated_submit_says_whether_somebody_reads(*, abandoned: bool) -> None:
    """The gateway was out of reach when its client left, or came back."""
    rig = full()
    if not abandoned:
        leave(rig, "r3")
    submit(rig, "r3", abandoned=abandoned)
    submit(rig, "x")
    assert preempted(rig) == (["r3"] if abandoned else [])


def test_a_stream_that_cannot_go_on_exactly_stays() -> None:
    rig = full(resumable=False)
    leave(rig, "r0", "r1")
    submit(rig, "x")
    assert preempted(rig) == []


def test_what_was_preempted_waits_behind_all_and_costs_no_retry() -> None:
    rig = full()
    leave(rig, "r3")
    submit(rig, "x")
    assert preempted(rig) == ["r3"]
    left = rig.core.tables.admission.retry_budget.left(0)
    submit(rig, "r3", 2, abandoned=True)
    submit(rig, "y")
    assert rig.core.tables.admission.retry_budget.left(0) >= left
    rig.receive("d0|1", Ended(request_id="r3", attempt=1, error="cancelled"))
    rig.ended("r0")
    placed = {key for key, a in rig.core.tables.attempts.items() if a.placed}
    assert {("x", 1), ("y", 1)} <= placed
    assert preempted(rig) == [], "it does not make room for itself"
    rig.ended("r1")
    assert rig.core.tables.attempts["r3", 2].state is AttemptState.PLACED


def test_a_queued_stream_whose_client_is_back_has_its_place_again() -> None:
    rig = full()
    submit(rig, "x", 2, abandoned=True)
    submit(rig, "y")
    assert [a.request_id for a in rig.core.tables.waiting.in_order()] == ["y", "x"]
    rig.receive("g0|1", Abandoned(request_id="x", attempt=2, abandoned=False))
    assert [a.request_id for a in rig.core.tables.waiting.in_order()] == ["x", "y"]


def test_what_can_be_had_counts_as_free_for_the_prediction() -> None:
    rig = full()
    before = admit._pool(rig.core.tables)
    leave(rig, "r0", "r1")
    after = admit._pool(rig.core.tables)
    assert (before.slots_free, after.slots_free) == (0, 2)
    assert after.kv_free == before.kv_free + 2 * 48


def test_another_gateways_stream_is_not_touched() -> None:
    rig = full()
    rig.gateway("g1")
    rig.receive("g1|1", Abandoned(request_id="r0", attempt=1))
    assert not rig.core.tables.abandoned
    assert rig.core.tables.counts.dropped["unknown abandoned"] == 1


@pytest.mark.parametrize("short", [True, False])
def test_while_kv_is_short_the_newest_of_the_lowest_class_makes_room(*, short: bool) -> None:
    rig = full(priority=PriorityClass.BATCH)
    rig.core.tables.admission.kv_used = 0.9 if short else 0.1
    submit(rig, "x", priority=PriorityClass.INTERACTIVE)
    preempt.preempt(rig.core.tables, rig.now)
    state = rig.core.tables.attempts["r3", 1].state
    assert state is (AttemptState.ABORTING if short else AttemptState.DECODING)
    assert rig.core.tables.attempts["r0", 1].state is AttemptState.DECODING


BATCH, INTERACTIVE = PriorityClass.BATCH, PriorityClass.INTERACTIVE


def split(victim: PriorityClass = BATCH, **fields: Any) -> Rig:
    """`r0`, then `r1`, stream on d0, which has room for 400 tokens. d1 has room for 200. `x` waits,
    and needs 300."""
    rig = Rig(remote_prefill="never")
    rig.gateway()
    rig.beat(rig.decode("d0", blocks=27), Load())
    for name in ("r0", "r1"):
        submit(rig, name, prompt_tokens=100, max_tokens=44, priority=victim, **fields)
        rig.started(name, kv=None)
    rig.beat(rig.decode("d1", blocks=14), Load())
    rig.core.tables.admission.kv_used = 0.9
    submit(rig, "x", prompt_tokens=200, max_tokens=40, priority=INTERACTIVE)
    assert rig.state("x") == "queued"
    rig.sent.clear()
    return rig


def pressed(rig: Rig, seconds: float = 0.2) -> list[str]:
    """What is told to move after so long, while KV stays short."""
    for _ in range(round(seconds / 0.2)):
        rig.core.tables.admission.kv_used = 0.9
        rig.now += 0.2
        for peer in ("g0|1", "d0|1", "d1|1"):
            rig.beat(peer, Load(running=1, kv_used=0.9))
        rig.core.tables.admission.kv_used = 0.9
        rig.sent += [a for a in preempt.preempt(rig.core.tables, rig.now) if isinstance(a, Send)]
        rig.sent += [a for a in moves.move_streams(rig.core.tables, rig.now) if isinstance(a, Send)]
        rig.core.check_invariants()
    return [move.request_id for move in rig.take(Move)]


def parked(rig: Rig) -> list[str]:
    return [failed.request_id for failed in rig.take(Failed) if failed.code == "preempted"]


def test_a_stream_moves_with_its_kv_where_that_makes_room() -> None:
    rig = split()
    assert pressed(rig, 0.6) == ["r1"]
    assert parked(rig) == []
    rig.ended("r1", error="moved")
    assert rig.known("x").decode == "d0|1"
    rig.submit("r1", 2, prompt=110, out=34, moved_from="d0|1", resumable=True, priority=BATCH)
    assert rig.known("r1", 2).decode == "d1|1"
    assert len(rig.take(HandOver, "d0|1")) == 1
    assert pressed(rig) == [], "nobody waits any more"


def test_none_is_parked_while_a_worker_is_open_that_was_kept_for_another() -> None:
    """The queue is looked at after this."""
    rig = split()
    rig.cancel("x")
    rig.beat(rig.decode("d2", blocks=27), Load())
    trials = rig.core.tables.quarantine.trials
    trials.rows["d2|1"] = Trial(b"suspected", rig.now)
    submit(rig, "y", prompt_tokens=380, max_tokens=20, priority=INTERACTIVE)
    assert rig.state("y") == "queued"
    rig.sent.clear()
    del trials.rows["d2|1"]
    rig.core.tables.admission.kv_used = 0.9
    assert preempt.preempt(rig.core.tables, rig.now) == []


def test_room_on_the_worker_that_it_left_is_none() -> None:
    """It fell silent for its gateway, and the router has heard nothing of that yet."""
    rig = split()
    rig.cancel("x")
    rig.beat(rig.decode("d2", blocks=27), Load())
    submit(rig, "y", 2, prompt_tokens=380, max_tokens=20, priority=INTERACTIVE, left="d2|1")
    assert rig.state("y", 2) == "queued"
    rig.core.tables.admission.kv_used = 0.9
    assert pressed(rig) == []
    assert parked(rig) == ["r1"]


def test_one_stream_at_a_time_is_on_its_way() -> None:
    rig = split()
    assert pressed(rig, 1.0) == ["r1"]


def test_a_stream_that_would_make_no_room_by_moving_is_parked() -> None:
    """What waits needs more than one of them leaves."""
    rig = split()
    rig.cancel("x")
    submit(rig, "y", prompt_tokens=380, max_tokens=20, priority=INTERACTIVE)
    assert pressed(rig, 0.2) == []
    assert parked(rig) == ["r1"]
    assert rig.core.tables.counts.moves == {(MoveReason.ROOM, MoveOutcome.PARKED): 1}


def test_a_stream_is_parked_where_nobody_has_room_for_it() -> None:
    rig = split()
    rig.gone("d1|1")
    assert pressed(rig, 0.2) == []
    (failed,) = [f for f in rig.take(Failed) if f.code == "preempted"]
    assert "no other worker has room for this one, which goes on later" in failed.message


def test_a_parked_stream_goes_on_without_a_retry_budget() -> None:
    """It has not failed, and its client would get an error in the middle of its answer."""
    rig = split()
    rig.gone("d1|1")
    pressed(rig, 0.2)
    assert parked(rig) == ["r1"]
    budget = rig.core.tables.admission.retry_budget
    while budget.take(1, rig.now):
        pass
    submit(rig, "r1", 2, prompt_tokens=110, max_tokens=34, priority=BATCH)
    assert rig.state("r1", 2) == "queued"
    submit(rig, "r0", 2, prompt_tokens=110, max_tokens=34, priority=BATCH)
    assert rig.state("r0", 2) == "refused"


def test_a_stream_that_has_just_moved_is_not_moved_again() -> None:
    """It is parked only if there is no other."""
    rig = split(moved_from="d9|1")
    assert pressed(rig, 0.2) == []
    assert parked(rig) == ["r1"]
    rig = split(moved_from="d9|1")
    rig.core.tables.attempts["r0", 1].moved_at = None
    assert pressed(rig, 0.6) == ["r0"]
    rig = split(moved_from="d9|1")
    rig.now += moves.COOLDOWN_SECONDS
    assert pressed(rig, 0.6) == ["r1"]


@pytest.mark.parametrize("ended_by", ["moved", "cancelled"])
def test_one_that_left_though_its_gateway_did_not_hear_of_it_has_moved(ended_by: str) -> None:
    rig = full()
    rig.ended("r0", error=ended_by)
    submit(rig, "r0", 2)
    assert moves.cools_down(rig.known("r0", 2), rig.now) is (ended_by == "moved")


def test_what_was_parked_waits_until_nobody_waits_for_whom_it_would_be_parked_again() -> None:
    """It would fit beside the one that waits, and be parked for that one at the next Tick."""
    rig = split()
    rig.gone("d1|1")
    pressed(rig, 0.2)
    assert parked(rig) == ["r1"]
    rig.receive("d0|1", Ended(request_id="r1", attempt=1, error="cancelled"))
    assert rig.state("x") == "placed"
    submit(rig, "y", prompt_tokens=200, max_tokens=40, priority=INTERACTIVE)
    submit(rig, "r1", 2, prompt_tokens=8, max_tokens=8, priority=BATCH)
    submit(rig, "z", prompt_tokens=8, max_tokens=8)
    assert (rig.state("y"), rig.state("r1", 2), rig.state("z")) == ("queued", "queued", "placed")
    rig.ended("z")
    assert rig.state("r1", 2) == "queued"
    rig.cancel("y")
    assert rig.state("r1", 2) == "placed"


@pytest.mark.parametrize("between", [False, True])
def test_no_stream_is_parked_twice_in_a_short_time(*, between: bool) -> None:
    """`between`: also if the attempt in which it went on failed for another reason."""
    rig = split()
    rig.gone("d1|1")
    pressed(rig, 0.2)
    assert parked(rig) == ["r1"]
    rig.receive("d0|1", Ended(request_id="r1", attempt=1, error="cancelled"))
    rig.ended("x")
    attempt = 2
    submit(rig, "r1", attempt, prompt_tokens=110, max_tokens=34, priority=BATCH)
    if between:
        rig.ended("r1", attempt, error="engine_failed")
        attempt = 3
        submit(rig, "r1", attempt, prompt_tokens=110, max_tokens=34, priority=BATCH)
    assert rig.state("r1", attempt) == "placed"
    submit(rig, "y", prompt_tokens=200, max_tokens=40, priority=INTERACTIVE)
    assert pressed(rig, 0.2) == []
    assert parked(rig) == ["r0"]
    rig.ended("r0", error="cancelled")
    rig.ended("y")
    submit(rig, "y2", prompt_tokens=380, max_tokens=20, priority=INTERACTIVE)
    assert pressed(rig, 0.4) == []
    assert parked(rig) == []


def test_of_two_the_one_that_has_not_just_moved_is_parked() -> None:
    rig = split(moved_from="d9|1")
    rig.core.tables.attempts["r0", 1].moved_at = None
    rig.gone("d1|1")
    pressed(rig, 0.2)
    assert parked(rig) == ["r0"]


def test_a_stream_that_moved_is_not_moved_again_in_a_later_attempt_either() -> None:
    rig = split()
    assert pressed(rig, 0.6) == ["r1"]
    rig.ended("r1", error="moved")
    rig.submit("r1", 2, prompt=110, out=34, moved_from="d0|1", resumable=True, priority=BATCH)
    rig.ended("r1", 2, peer="d1|1", error="engine_failed")
    rig.submit("r1", 3, prompt=110, out=34, resumable=True, priority=BATCH)
    assert moves.cools_down(rig.known("r1", 3), rig.now)
    assert not moves.cools_down(rig.known("r1", 3), rig.now + moves.COOLDOWN_SECONDS)


def test_a_parked_stream_that_nobody_reads_waits_behind_all_that_are_read() -> None:
    rig = split(PriorityClass.STANDARD)
    rig.gone("d1|1")
    leave(rig, "r1")
    pressed(rig, 0.2)
    assert parked(rig) == ["r1"]
    rig.ended("r1", error="cancelled")
    submit(rig, "y", prompt_tokens=200, max_tokens=40)
    submit(rig, "r1", 2, prompt_tokens=8, max_tokens=8, abandoned=True)
    assert (rig.state("y"), rig.state("r1", 2)) == ("queued", "queued")
    rig.cancel("y")
    assert rig.state("r1", 2) == "placed"


def test_nobody_of_the_same_class_makes_room() -> None:
    rig = split(INTERACTIVE)
    assert pressed(rig, 0.6) == []
    assert parked(rig) == []


def test_a_stream_that_nobody_reads_moves_too() -> None:
    rig = split(PriorityClass.STANDARD)
    leave(rig, "r0")
    assert pressed(rig, 0.6) == ["r0"]
    assert parked(rig) == []


def test_a_gateway_that_did_not_hear_that_its_stream_was_parked_is_told_again() -> None:
    rig = full()
    leave(rig, "r0")
    submit(rig, "x", tenant="other")
    assert preempted(rig) == ["r0"]
    rig.gateway()
    assert [(failed.request_id, failed.attempt) for failed in rig.take(Failed)] == [("r0", 1)]
