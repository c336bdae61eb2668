"""A request is promised KV a budget at a time: it grows where it is, moves, or is parked."""

from __future__ import annotations

from typing import Any

import pytest

from common.blocks import Kept, KvGroup
from common.errors import Code
from common.messages import (
    Abort,
    BudgetReached,
    CopyAhead,
    Decode,
    GrantKv,
    HandOver,
    HeldAttempt,
    Holding,
    Introduce,
    KeyLimits,
    Load,
    Move,
    Prefill,
    PriorityClass,
)
from services.router.records.move import MoveOutcome, MoveReason
from services.router.rules.moves import PARKED_SECONDS
from services.router.timeline.attempt_story import attempt_records
from tests.unit.services.router.rig import Rig

D0, D1 = "d0|1", "d1|1"
BLOCK_BYTES = 1024
#: Four blocks, 64 tokens.
BUDGET = 4 * BLOCK_BYTES
NEAR, FULL = 52, 64


def fleet(blocks: tuple[int, ...] = (21,), budget: int = BUDGET, **settings: Any) -> Rig:
    """Decode workers d0 and so on, each with so many blocks, of which a twentieth is not given."""
    rig = Rig(kv_budgets=(budget,) * 3, mode="replicated", **settings)
    rig.gateway()
    for n, size in enumerate(blocks):
        rig.beat(rig.decode(f"d{n}", blocks=size), Load())
    rig.sent.clear()
    return rig


def stream(rig: Rig, request_id: str = "r1", peer: str = D0, out: int = 140, **more: Any) -> Decode:
    """It has 40 tokens of prompt, and streams."""
    rig.submit(request_id, out=out, **{"resumable": True, **more})
    (order,) = rig.take(Decode)
    assert rig.known(request_id).decode == peer
    rig.started(request_id, peer=peer, kv=None)
    return order


def reach(rig: Rig, tokens: int, request_id: str = "r1", attempt: int = 1, peer: str = D0) -> None:
    rig.receive(peer, BudgetReached(request_id=request_id, attempt=attempt, tokens=tokens))


def leave(rig: Rig, tokens: int, request_id: str = "r1", peer: str = D0, out: int = 116) -> None:
    """Its worker ends it and its gateway submits it again."""
    rig.ended(request_id, peer=peer, error=Code.MOVED)
    rig.submit(request_id, 2, prompt=tokens, out=out, moved_from=peer, resumable=True)


def grants(rig: Rig) -> list[tuple[int, int]]:
    return [(grant.kv_tokens, grant.kv_tokens_near) for grant in rig.take(GrantKv, D0)]


def promised(rig: Rig, peer: str = D0) -> int:
    return rig.row(peer).held_tokens


# ------------------------------------------------------------ what is promised


def test_only_the_budget_is_promised_and_the_worker_knows_it() -> None:
    rig = fleet()
    order = stream(rig)
    assert (order.kv_tokens, order.kv_tokens_near) == (FULL, NEAR)
    assert promised(rig) == FULL


def test_as_many_run_as_have_room_for_their_budgets() -> None:
    rig = fleet((17,))  # 16 blocks, and each may grow to 15
    for n in range(4):
        stream(rig, f"r{n}")
    rig.submit("late", out=200, resumable=True)
    assert rig.state("late") == "queued"


@pytest.mark.parametrize(
    ("more", "kv_tokens"),
    [
        ({}, 64),
        ({"priority": PriorityClass.BATCH}, 48),
        ({"limits": KeyLimits(kv_budget_mib=6 * BLOCK_BYTES / (1 << 20))}, 96),
        (
            {
                "limits": KeyLimits(kv_budget_mib=6 * BLOCK_BYTES / (1 << 20)),
                "priority": PriorityClass.BATCH,
            },
            96,
        ),
        ({"limits": KeyLimits(concurrency=9)}, 64),
    ],
)
def test_a_key_goes_before_a_class(more: dict[str, Any], kv_tokens: int) -> None:
    rig = fleet((100,))
    rig = Rig(kv_budgets=(BUDGET, BUDGET, 3 * BLOCK_BYTES), mode="replicated")
    rig.gateway()
    rig.beat(rig.decode(), Load())
    more.setdefault("prompt", 30)
    rig.submit("r1", out=200, resumable=True, **more)
    (order,) = rig.take(Decode)
    assert order.kv_tokens == kv_tokens


def test_what_cannot_go_on_elsewhere_is_promised_all() -> None:
    rig = fleet()
    order = stream(rig, resumable=False, out=200)
    assert (order.kv_tokens, promised(rig)) == (0, 240)


def test_without_a_budget_all_is_promised() -> None:
    rig = fleet(budget=0)
    assert stream(rig, out=200).kv_tokens == 0
    assert promised(rig) == 240


def test_what_waits_for_the_first_worker_has_its_budget_too() -> None:
    rig = Rig(kv_budgets=(BUDGET,) * 3, mode="replicated")
    rig.gateway()
    rig.submit("r1", out=200, resumable=True)
    rig.beat(rig.decode(blocks=21), Load())
    assert [order.kv_tokens for order in rig.take(Decode)] == [FULL]


def test_what_no_idle_worker_could_hold_is_refused_with_a_budget_too() -> None:
    rig = fleet((10,))
    rig.submit("r1", out=200, resumable=True)
    assert rig.known().outcome == Code.CONTEXT_LENGTH_EXCEEDED


# ------------------------------------------------------------ it grows where it is


def test_near_its_budget_it_is_promised_the_next_one_where_there_is_room() -> None:
    rig = fleet()
    stream(rig, out=200)
    reach(rig, NEAR)
    assert grants(rig) == [(128, 116)]
    assert promised(rig) == 128
    reach(rig, 116)
    reach(rig, 180)
    assert grants(rig) == [(192, 180), (0, 0)], "what is left of it fits into four budgets"
    assert promised(rig) == 240
    assert rig.core.tables.counts.grants == 3


def test_a_grant_that_was_lost_is_sent_again_and_promises_nothing_more() -> None:
    rig = fleet()
    stream(rig)
    reach(rig, NEAR)
    reach(rig, FULL)
    assert grants(rig) == [(128, 116)] * 2
    assert promised(rig) == 128


def test_it_stays_where_its_own_worker_has_as_much_room() -> None:
    rig = fleet((21, 21))
    stream(rig)
    reach(rig, NEAR)
    assert grants(rig) == [(128, 116)]


def test_a_report_of_another_attempt_or_worker_changes_nothing() -> None:
    rig = fleet((21, 21))
    stream(rig)
    reach(rig, NEAR, attempt=2)
    reach(rig, NEAR, peer=D1)
    assert grants(rig) == []
    assert rig.core.tables.counts.dropped == {"stale budget report": 2}


def test_one_that_is_only_placed_can_grow_and_does_not_leave() -> None:
    """The report of its first token may be late."""
    rig = fleet((13, 40))
    rig.row(D1).set_drained(True)
    for n in range(3):
        rig.submit(f"r{n}", out=140, resumable=True)
    rig.row(D1).set_drained(False)
    reach(rig, FULL, "r0")
    assert not rig.take(Move)
    rig.started("r0", kv=None)
    reach(rig, FULL + 16, "r0")
    assert rig.take(Move)


# ------------------------------------------------------------ it moves


def crowded(**settings: Any) -> Rig:
    """d0 has no room for another budget, and d1 has some."""
    rig = fleet((13, 40), **settings)  # 12 blocks
    rig.row(D1).set_drained(True)
    for n in range(3):
        stream(rig, f"r{n}")
    rig.row(D1).set_drained(False)
    rig.tick()
    rig.sent.clear()
    return rig


def test_where_its_worker_has_no_room_the_next_one_connects_at_80_percent() -> None:
    rig = crowded()
    reach(rig, NEAR, "r0")
    assert [order.kv_address for order in rig.take(Introduce, D1)] == [rig.row(D0).kv_address]
    order = rig.known("r0").leaves_by
    assert order is not None
    assert (order.reason, order.target, order.told) == (MoveReason.BUDGET, D1, None)
    assert grants(rig) == []


def test_at_100_percent_it_leaves_whatever_is_ready() -> None:
    rig = crowded()
    reach(rig, NEAR, "r0")
    reach(rig, FULL, "r0")
    assert [move.request_id for move in rig.take(Move, D0)] == ["r0"]
    reach(rig, FULL + 16, "r0")
    assert not rig.take(Move)
    leave(rig, FULL, "r0")
    (order,) = rig.take(Decode, D1)
    assert order.kv_tokens == 128
    assert order.ticket is not None
    assert rig.take(HandOver, D0)
    rig.started("r0", 2, peer=D1)
    assert rig.core.tables.counts.moves == {(MoveReason.BUDGET, MoveOutcome.MOVED): 1}
    assert rig.core.tables.counts.move_bytes == {MoveReason.BUDGET: 3072}


def test_it_leaves_at_100_percent_also_if_nothing_was_heard_before() -> None:
    rig = crowded()
    reach(rig, FULL, "r0")
    assert [move.request_id for move in rig.take(Move, D0)] == ["r0"]


def test_its_full_blocks_are_copied_first_where_that_is_configured() -> None:
    rig = Rig(kv_budgets=(BUDGET,) * 3, mode="replicated", copy_ahead_seconds=0.5)
    rig.gateway()
    rig.beat(rig.decode("d0", blocks=13, pull_blocks=9), Load())
    for n in range(3):
        stream(rig, f"r{n}")
    rig.beat(rig.decode("d1", blocks=40, pull_blocks=9), Load())
    rig.tick()
    reach(rig, NEAR, "r0")
    rig.tick(0.4)
    (copy,) = [order for order in rig.take(CopyAhead, D0) if order.request_id == "r0"]
    assert copy.holder is not None
    assert copy.holder.name == "d1"
    assert not rig.take(Move)
    reach(rig, FULL, "r0")
    assert [move.request_id for move in rig.take(Move, D0)] == ["r0"]


def test_it_goes_where_most_room_is() -> None:
    rig = fleet((13,))
    for n in range(3):
        stream(rig, f"r{n}")
    rig.beat(rig.decode("d1", blocks=20), Load())
    rig.beat(rig.decode("d2", blocks=30), Load())
    reach(rig, FULL, "r0")
    order = rig.known("r0").leaves_by
    assert order is not None
    assert order.target == "d2|1"


def test_it_moves_though_its_worker_has_room_if_another_has_more() -> None:
    rig = fleet((21,))
    stream(rig)
    rig.beat(rig.decode("d1", blocks=40), Load())
    reach(rig, FULL)
    assert grants(rig) == []
    assert rig.take(Move, D0)


def test_streams_that_are_on_their_way_count_where_they_go_and_where_they_leave() -> None:
    """So that not all of them go where one would do."""
    rig = fleet((21,))
    for n in range(2):
        stream(rig, f"r{n}")
    rig.beat(rig.decode("d1", blocks=21), Load())
    reach(rig, NEAR, "r0")
    reach(rig, NEAR, "r1")
    leaving = [key for key, _ in rig.core.tables.leaving]
    assert leaving == ["r0"]
    assert grants(rig) == [(128, 116)], "r1 has its worker to itself once r0 has left"


def test_one_that_has_just_moved_stays_where_it_has_room() -> None:
    rig = fleet((21,))
    stream(rig)
    rig.known().moved_at = rig.now - 5
    rig.beat(rig.decode("d1", blocks=40), Load())
    reach(rig, FULL)
    assert grants(rig) == [(128, 116)]


def test_a_worker_without_room_for_the_next_budget_is_not_asked() -> None:
    rig = fleet((13,))
    for n in range(3):
        stream(rig, f"r{n}")
    rig.beat(rig.decode("d1", blocks=7), Load())  # six blocks, it needs eight
    reach(rig, FULL, "r0")
    order = rig.known("r0").leaves_by
    assert order is not None
    assert order.parks


# ------------------------------------------------------------ it is parked


def parked(**settings: Any) -> Rig:
    """r0 of three on a full worker."""
    rig = fleet((13,), **settings)
    for n in range(3):
        stream(rig, f"r{n}")
    reach(rig, NEAR, "r0")
    assert rig.known("r0").leaves_by is None, "nothing can be prepared"
    reach(rig, FULL, "r0")
    return rig


def test_where_nobody_has_room_it_waits_in_the_queue() -> None:
    rig = parked()
    assert [move.request_id for move in rig.take(Move, D0)] == ["r0"]
    leave(rig, FULL, "r0")
    assert rig.state("r0", 2) == "queued"
    assert promised(rig) == 128
    assert rig.core.tables.counts.moves == {(MoveReason.BUDGET, MoveOutcome.PARKED): 1}


def test_it_goes_on_from_its_kv_if_room_appears_within_the_grace() -> None:
    rig = parked()
    leave(rig, FULL, "r0")
    rig.sent.clear()
    rig.beat(rig.decode("d1", blocks=40), Load())
    assert rig.take(HandOver, D0)
    (order,) = rig.take(Decode, "d1|1")
    assert order.kv_tokens == 128
    rig.tick(1.0)
    assert not rig.take(Abort, D0), "what is kept was taken"


def test_after_the_grace_its_worker_lets_its_kv_go_and_it_is_placed_as_any_other() -> None:
    rig = parked()
    leave(rig, FULL, "r0")
    rig.tick(PARKED_SECONDS)
    rig.tick(PARKED_SECONDS)
    assert [(a.request_id, a.attempt) for a in rig.take(Abort, D0)] == [("r0", 1)]
    rig.sent.clear()
    rig.ended("r1")
    (order,) = rig.take(Decode, D0)
    assert (order.request_id, order.attempt, order.ticket) == ("r0", 2, None)
    assert not rig.take(HandOver)
    rig.now += 0.3
    rig.started("r0", 2, kv=None)
    counts = rig.core.tables.counts
    assert counts.moves == {(MoveReason.BUDGET, MoveOutcome.PARKED): 1}
    assert counts.park_pauses.count == 1
    assert not counts.move_pauses.count
    rig.tick(1.0)
    assert not rig.core.tables.parked


def test_what_goes_on_where_it_was_needs_no_kept_kv() -> None:
    """Its engine has the blocks in its cache; those that are kept would be missing to others."""
    rig = parked()
    leave(rig, FULL, "r0")
    rig.sent.clear()
    rig.ended("r1")
    assert rig.take(Decode, D0)
    assert not rig.take(HandOver)
    rig.tick(PARKED_SECONDS + 0.2)
    assert [abort.request_id for abort in rig.take(Abort, D0)] == ["r0"]


def test_one_that_has_not_left_is_not_aborted_after_the_grace() -> None:
    """Its gateway would hear nothing of its end."""
    rig = parked()
    rig.tick(1.0, alive=(D0, "g0|1"))
    assert not rig.take(Abort, D0)
    rig.tick(2.0, alive=(D0, "g0|1"))
    assert not rig.take(Abort, D0), "the order was lost"
    assert not rig.core.tables.parked
    rig.sent.clear()
    reach(rig, FULL + 16, "r0")
    assert rig.take(Move, D0), "it is parked when it tells again"


@pytest.mark.parametrize("lost", ["the order", "the connection of its gateway", "both"])
def test_only_one_that_left_as_it_was_told_goes_on_without_a_retry(lost: str) -> None:
    """Its gateway hears of no move in any of these cases."""
    rig = parked()
    if lost == "both":
        rig.tick(1.0, alive=(D0, "g0|1"))
        rig.tick(2.0, alive=(D0, "g0|1"))
    rig.ended("r0", error=Code.MOVED if lost == "the connection of its gateway" else "")
    before = rig.core.tables.admission.retry_budget.left(0)
    rig.submit("r0", 2, prompt=FULL, out=116, resumable=True)
    attempt = rig.known("r0", 2)
    taken = before - rig.core.tables.admission.retry_budget.left(0)
    free = lost == "the connection of its gateway"
    assert (attempt.follows_parked, taken) == (free, 0 if free else 1)


def test_one_that_was_parked_goes_on_though_its_gateway_is_heard_before_its_worker() -> None:
    rig = parked()
    before = rig.core.tables.admission.retry_budget.left(0)
    rig.submit("r0", 2, prompt=FULL, out=116, moved_from=D0, resumable=True)
    assert rig.known("r0", 2).follows_parked
    assert rig.core.tables.admission.retry_budget.left(0) == before


def test_parked_streams_go_on_in_order_of_class() -> None:
    """Each needs two thirds of the worker, so that one runs at a time."""
    rig = fleet((13,))
    classes = (PriorityClass.BATCH, PriorityClass.INTERACTIVE, PriorityClass.STANDARD)
    for n, priority in enumerate(classes):
        stream(rig, f"r{n}", priority=priority)
    for n in range(3):
        reach(rig, FULL, f"r{n}")
    assert [move.request_id for move in rig.take(Move)] == ["r0", "r1", "r2"]
    for n, priority in enumerate(classes):
        more: dict[str, Any] = {"moved_from": D0, "resumable": True, "priority": priority}
        rig.submit(f"r{n}", 2, prompt=FULL, out=116, **more)
    for n in range(3):
        rig.ended(f"r{n}", error=Code.MOVED)
    went = [order.request_id for order in rig.take(Decode)]
    for _ in range(2):
        rig.ended(went[-1], 2)
        went += [order.request_id for order in rig.take(Decode)]
    assert went == ["r1", "r2", "r0"]


def test_it_goes_before_newer_requests_of_its_class() -> None:
    rig = parked()
    rig.submit("big", out=200, resumable=False, prompt=90)
    rig.submit("new", out=140, resumable=True, prompt=90)
    leave(rig, FULL, "r0")
    assert [rig.known(*key).placement for key in (("r0", 2), ("new", 1))] == [None, None]
    rig.ended("r1")
    assert rig.known("r0", 2).placement is not None
    assert rig.known("new").placement is None


def test_it_makes_room_for_a_higher_class_that_waits_for_kv() -> None:
    rig = fleet((13, 40))
    rig.row(D1).set_drained(True)
    for n in range(3):
        stream(rig, f"r{n}")
    rig.submit("first", out=20, priority=PriorityClass.INTERACTIVE, resumable=True)
    assert rig.state("first") == "queued"
    reach(rig, FULL, "r0")
    order = rig.known("r0").leaves_by
    assert order is not None
    assert order.parks
    assert "a request of a higher class waits for KV" in order.sentence
    leave(rig, FULL, "r0")
    assert rig.known("first").placement is not None
    assert rig.state("r0", 2) == "queued"


def test_a_stream_whose_kv_does_not_move_is_parked_though_another_has_room() -> None:
    groups = (KvGroup(16), KvGroup(16, Kept.WINDOW, reach=32))
    rig = Rig(kv_budgets=(8 * BLOCK_BYTES,) * 3, mode="replicated")
    rig.gateway()
    rig.beat(rig.decode("d0", blocks=17, groups=groups), Load())
    orders = [stream(rig, f"r{n}") for n in range(2)]
    rig.beat(rig.decode("d1", blocks=40, groups=groups), Load())
    reach(rig, orders[0].kv_tokens, "r0")
    leaves = rig.known("r0").leaves_by
    assert leaves is not None
    assert leaves.parks


# ------------------------------------------------------------ another router


def held(**more: Any) -> HeldAttempt:
    return HeldAttempt("r1", 1, 40, 200, D0, gateway="g0|1", started=True, kv_tokens=FULL, **more)


@pytest.mark.parametrize(("alone", "sent"), [(True, [(0, 0)]), (False, [])])
def test_what_another_router_placed_counts_its_budget_and_gets_all_when_it_asks(
    alone: bool, sent: list[tuple[int, int]]
) -> None:
    rig = fleet(standby={} if alone else {"r1": "ipc://r1"})
    rig.receive(D0, Holding(attempts=(held(),)))
    assert promised(rig) == FULL
    reach(rig, NEAR)
    assert grants(rig) == sent
    assert promised(rig) == (240 if alone else FULL)


# ------------------------------------------------------------ what is told of it


def told(rig: Rig, attempts: int = 2) -> str:
    known = [rig.known("r0", n + 1) for n in range(attempts)]
    return "\n".join(s for record in attempt_records(known, rig.now) for s in record.sentences)


def test_explain_tells_of_a_park_and_that_it_was_computed_again() -> None:
    rig = parked()
    leave(rig, FULL, "r0")
    rig.tick(1.0)
    rig.ended("r1")
    rig.now += 0.1
    rig.started("r0", 2, kv=None)
    story = told(rig)
    for part in (
        "it was promised KV for 64 of 180 tokens",
        "when it was parked (budget)",
        "it was parked, and left d0 after 64 tokens: its next step may bring it to 64 tokens, ",
        "and its KV budget holds 64, and no worker has room; it waits until one has, ",
        "and its KV is let go (budget)",
        "with 0 bytes of KV, and 64 tokens computed again",
    ):
        assert part in story, story
    move = attempt_records([rig.known("r0"), rig.known("r0", 2)], rig.now)[1].move
    assert move is not None
    assert move.parked
    assert move.reason == "budget"
    assert move.pause_ms == pytest.approx(1100.0)


def test_explain_tells_of_budgets_that_were_added() -> None:
    rig = fleet()
    stream(rig, "r0")
    reach(rig, NEAR, "r0")
    assert "it was promised KV for 128 of 180 tokens, the last of 2 budgets there" in told(rig, 1)
    assert not rig.take(Prefill)
