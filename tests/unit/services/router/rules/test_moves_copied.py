"""Streams are copied ahead of a planned move: when they leave, where they go on, and what stops."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

from common.config import from_mapping
from common.errors import ConfigError
from common.messages import Beat, CopiedAhead, CopyAhead, HandOver, KvCheckpoint, Load, Move
from services.router.events import WorkerDrained
from services.router.rules.moves import CONNECT_SECONDS, LAG_BLOCKS, LOST_SECONDS
from services.router.settings import from_config
from services.router.timeline.attempt_story import attempt_record
from tests.unit.services.router.admin.verbs.test_explain import ask
from tests.unit.services.router.rig import Rig
from tests.unit.services.router.rules.test_moves import D0, D1, GATEWAY, P0, give_up, moved

D2 = "d2|1"
ALL = (GATEWAY, P0, D0, D1, D2)
AHEAD = 1.5
LATER = CONNECT_SECONDS + 0.1


def three(streams: int = 1, *, stores: str = "d0 d1 d2", **settings: Any) -> Rig:
    """`r0` and so on stream on d0; d1 and d2 have room. `stores`: who has one for others."""
    rig = Rig(**{"copy_ahead_seconds": AHEAD, **settings})
    rig.gateway()
    rig.beat(rig.prefill(), Load())
    rig.beat(rig.decode("d0", pull_blocks=64 * ("d0" in stores)), Load())
    for n in range(streams):
        rig.submit(f"r{n}", resumable=True)
        rig.prefilled(f"r{n}")
        rig.started(f"r{n}")
    for name in ("d1", "d2"):
        rig.beat(rig.decode(name, pull_blocks=64 * (name in stores)), Load())
    rig.sent.clear()
    return rig


def ordered(rig: Rig, to: str = "d1") -> CopyAhead:
    """An operator moves r0, and the workers are connected."""
    ask(rig, "move", request="r0", to=to)
    rig.tick(LATER, alive=ALL)
    (order,) = rig.take(CopyAhead, D0)
    assert rig.take(Move) == [], "it goes on meanwhile"
    return order


def copied(rig: Rig, held: int = 3, peer: str = D0, attempt: int = 1) -> list[str]:
    """Who is told to leave when that is reported."""
    rig.receive(peer, CopiedAhead(request_id="r0", attempt=attempt, held=held))
    return [move.request_id for move in rig.take(Move, D0)]


def test_the_stream_leaves_when_its_blocks_are_there() -> None:
    rig = three()
    order = ordered(rig)
    assert order.holder is not None
    assert (order.holder.name, order.holder.kv_address) == ("d1", rig.row(D1).kv_address)
    assert order.holder.goes_on, "its engine gets the blocks, too"
    assert (order.request_id, order.attempt, order.lag_blocks) == ("r0", 1, LAG_BLOCKS)
    rig.tick(AHEAD / 2, alive=ALL)
    assert rig.take(Move) == []
    assert copied(rig) == ["r0"]
    assert copied(rig) == [], "once"
    give_up(rig)
    assert rig.known("r0", 2).decode == D1
    (handed,) = rig.take(HandOver, D0)
    assert handed.ticket.decode == "d1"
    story = " ".join(attempt_record(rig.known("r0", 2), rig.now).sentences)
    assert "3 full blocks were copied to d1 before" in story


def test_without_a_target_it_goes_on_where_its_blocks_are() -> None:
    for name, other in (("d1", "d2"), ("d2", "d1")):
        rig = three()
        ask(rig, "drain", worker=other)
        rig.sent.clear()
        order = ordered(rig, to="")
        assert order.holder is not None
        assert order.holder.name == name
        ask(rig, "resume", worker=other)
        copied(rig)
        give_up(rig)
        assert rig.known("r0", 2).decode == f"{name}|1"


def test_it_leaves_when_the_time_is_over() -> None:
    rig = three()
    ordered(rig)
    rig.tick(AHEAD - 0.1, alive=ALL)
    assert rig.take(Move) == []
    assert moved(rig, 0.2) == ["r0"]
    give_up(rig)
    assert rig.known("r0", 2).decode == D1
    story = " ".join(attempt_record(rig.known("r0", 2), rig.now).sentences)
    assert "before" not in story, "what was copied is not known"


@pytest.mark.parametrize("how", ["drain", "stop"])
def test_the_streams_of_a_worker_that_empties_are_copied_first(how: str) -> None:
    rig = three(3)
    if how == "drain":
        rig.handle(WorkerDrained(D0, on=True))
    else:
        rig.leave(D0)
    rig.tick(LATER + 0.2, alive=ALL)
    orders = rig.take(CopyAhead, D0)
    assert [order.request_id for order in orders] == ["r0", "r1", "r2"]
    assert rig.take(Move) == []
    assert copied(rig) == ["r0"]
    rig.tick(AHEAD + 0.1, alive=ALL)
    assert [move.request_id for move in rig.take(Move)] == ["r1", "r2"]


def test_streams_that_leave_together_spread() -> None:
    rig = three(6)
    rig.handle(WorkerDrained(D0, on=True))
    rig.tick(LATER + 0.2, alive=ALL)
    takers = Counter(order.holder.name for order in rig.take(CopyAhead, D0) if order.holder)
    assert takers == {"d1": 3, "d2": 3}


@pytest.mark.parametrize(
    ("case", "about"),
    [
        ("off", {"copy_ahead_seconds": 0.0}),
        ("no store there", {"stores": "d0"}),
        ("no store here", {"stores": "d1 d2"}),
    ],
)
def test_otherwise_it_leaves_at_once(case: str, about: dict[str, Any]) -> None:
    rig = three(**about)
    ask(rig, "move", request="r0", to="d1")
    assert moved(rig, LATER) == ["r0"], case
    assert rig.take(CopyAhead) == []


def test_what_is_evicted_does_not_wait() -> None:
    rig = three()
    ask(rig, "evict", worker="d0")
    assert moved(rig, LATER + 0.3) == ["r0"]
    assert rig.take(CopyAhead) == []


def test_a_taker_that_dies_is_not_waited_for() -> None:
    rig = three()
    ordered(rig)
    rig.gone(D1)
    assert moved(rig, 0.1) == ["r0"]
    give_up(rig)
    assert rig.known("r0", 2).decode == D2
    assert len(rig.take(HandOver, D0)) == 1, "all of its KV comes with the ticket"


def test_a_worker_that_dies_meanwhile_leaves_the_copies() -> None:
    """The next attempt goes on from them."""
    rig = three()
    ordered(rig)
    assert rig.known("r0", 1).holder == D1
    rig.gone(D0)
    rig.submit("r0", 2, prompt=44, out=4, resumable=True)
    assert rig.known("r0", 2).copies_at == D1


def test_where_nobody_has_room_any_more_the_copying_ends() -> None:
    rig = three()
    ordered(rig)
    for name in ("d1", "d2"):
        ask(rig, "drain", worker=name)
    assert copied(rig) == []
    (order,) = rig.take(CopyAhead, D0)
    assert order.holder is None
    assert rig.known("r0", 1).holder == ""
    rig.tick(LOST_SECONDS, alive=ALL)
    assert rig.take(Move) == []


def test_where_nothing_was_copied_nothing_is_ended() -> None:
    rig = three(stores="d0")
    ask(rig, "move", request="r0")
    for name in ("d1", "d2"):
        ask(rig, "drain", worker=name)
    assert moved(rig, LATER) == []
    assert rig.take(CopyAhead) == []


def test_where_copies_are_wanted_anyway_they_go_on() -> None:
    rig = three(checkpoint="all")
    ordered(rig)
    for name in ("d1", "d2"):
        ask(rig, "drain", worker=name)
    assert copied(rig) == []
    assert rig.take(CopyAhead) == []
    assert rig.known("r0", 1).holder == D1


def test_the_holder_of_its_copies_is_preferred() -> None:
    for _ in range(2):
        rig = three(checkpoint="all")
        rig.known("r0", 1).holder = D2
        order = ordered(rig, to="")
        assert order.holder is not None
        assert order.holder.name == "d2"


def test_what_another_holder_had_is_not_taken_for_its_own() -> None:
    """When the worker dies, the next attempt goes where the copies are, as far as they are."""
    rig = three(checkpoint="all")
    rig.known("r0", 1).holder = D2
    row = KvCheckpoint(request_id="r0", attempt=1, holder="d2", blocks=2, held=2)
    rig.receive(D0, Beat(load=Load(running=1), kv_checkpoints=(row,)))
    ordered(rig, to="d1")
    rig.gone(D0)
    rig.submit("r0", 2, prompt=44, out=4, resumable=True)
    assert rig.known("r0", 2).copied_blocks == 0


def test_reports_of_others_are_not_believed() -> None:
    rig = three()
    ordered(rig)
    assert copied(rig, peer=D1) == []
    assert copied(rig, attempt=7) == []
    assert rig.core.tables.counts.dropped["stale copy report"] == 2
    assert copied(rig) == ["r0"]


def test_a_report_without_an_order_moves_nothing() -> None:
    rig = three()
    assert copied(rig) == []
    ask(rig, "move", request="r0", to="d1")
    assert copied(rig) == [], "it is not copied yet"


def test_a_stream_that_ends_meanwhile_leaves_no_order() -> None:
    rig = three()
    ordered(rig)
    rig.ended("r0")
    assert not rig.core.tables.leaving
    assert copied(rig) == []


def test_it_needs_stores() -> None:
    with pytest.raises(ConfigError, match=r"kv\.copy_ahead_ms.*ram_mib"):
        from_mapping({"kv": {"copy_ahead_ms": 500}, "decode": {"d0": {}, "d1": {}}})
    kv = {"copy_ahead_ms": 500, "store": {"ram_mib": 8}}
    config = from_mapping({"kv": kv, "decode": {"d0": {"kv": kv}, "d1": {"kv": kv}}})
    assert from_config(config, "r0", "1").copy_ahead_seconds == 0.5
    assert from_config(from_mapping({}), "r0", "1").copy_ahead_seconds == 0.0
