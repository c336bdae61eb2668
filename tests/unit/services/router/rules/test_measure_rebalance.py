"""Running streams even out the load of decode workers, if that is allowed."""

from __future__ import annotations

from typing import Any

import pytest

from common.config import RebalanceConfig
from common.messages import Load, Move
from services.router.admin.verbs.policy import _streams
from services.router.events import Action, Note
from services.router.records.move import MoveReason
from services.router.rules.moves import CONNECT_SECONDS
from tests.unit.services.router.rig import Rig

D0, D1 = "d0|1", "d1|1"
ALIVE = (D0, D1, "g0|1")


def fleet(mode: Any, streams: int = 6, *, slope: float = 0.01, **more: Any) -> Rig:
    """All streams are on d0, and d1 has just come. A step takes `slope` longer for each stream."""
    rig = Rig(rebalance=RebalanceConfig(mode=mode), mode="replicated", **more)
    rig.gateway()
    rig.beat(rig.decode("d0", blocks=400), Load())
    for n in range(streams):
        rig.submit(f"r{n}", out=200, resumable=True)
        rig.started(f"r{n}", kv=None)
    for batch in range(1, 9):
        for _ in range(64):
            rig.core.tables.estimates.record_decode("d0", batch, 1, 0.01 + slope * batch)
    rig.beat(rig.decode("d1", blocks=400), Load())
    rig.sent.clear()
    return rig


def orders(rig: Rig) -> list[tuple[str, MoveReason, str]]:
    leaving = rig.core.tables.leaving.values()
    return [(a.request_id, a.leaves_by.reason, a.leaves_by.target) for a in leaving if a.leaves_by]


def advised(actions: list[Action]) -> list[str]:
    return [a.sentence for a in actions if isinstance(a, Note) and a.event == "rebalance.advised"]


def test_one_stream_moves_to_the_emptier_worker() -> None:
    rig = fleet("on")
    rig.tick(0.2, alive=ALIVE)
    ((request_id, reason, target),) = orders(rig)
    assert (reason, target) == (MoveReason.REBALANCE, D1)
    rig.tick(CONNECT_SECONDS + 0.3, alive=ALIVE)
    assert [move.request_id for move in rig.take(Move, D0)] == [request_id]
    verdict = rig.core.tables.rebalance.verdict
    assert verdict is not None


def test_the_next_one_waits_until_that_is_over_and_for_a_while_after() -> None:
    rig = fleet("on")
    for _ in range(4):
        rig.tick(1.0, alive=ALIVE)
    told = rig.take(Move, D0)
    assert len({move.request_id for move in told}) == 1
    assert "a stream moved between d0 and d1" in _streams(rig.core.tables)["streams_why"]


def test_off_looks_at_nothing() -> None:
    rig = fleet("off")
    rig.tick(3.0, alive=ALIVE)
    assert not rig.take(Move)
    assert rig.core.tables.rebalance.verdict is None
    assert _streams(rig.core.tables) == {
        "streams_mode": "off",
        "streams_would": "",
        "streams_why": "[router.rebalance] mode is off, so nothing is watched",
    }


def test_dry_says_once_what_it_would_do_and_does_nothing() -> None:
    rig = fleet("dry")
    told = advised(rig.tick(0.2, alive=ALIVE))
    assert len(told) == 1
    assert "should go on at d1: d0 has 6 streams and d1 0: a move gains" in told[0]
    assert advised(rig.tick(0.8, alive=ALIVE)) == []
    assert orders(rig) == []
    row = _streams(rig.core.tables)
    assert row["streams_mode"] == "dry"
    assert row["streams_would"].endswith(" to d1")


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (lambda rig: rig.row(D1).set_drained(True), "there is no second decode worker"),
        (lambda rig: [rig.ended(f"r{n}") for n in range(6)], "all decode workers have as many"),
    ],
)
def test_it_says_why_nothing_is_done(change: Any, why: str) -> None:
    rig = fleet("on")
    change(rig)
    rig.tick(0.2)
    assert orders(rig) == []
    assert why in _streams(rig.core.tables)["streams_why"]


def test_a_stream_that_has_just_moved_is_left_alone() -> None:
    rig = fleet("on")
    for n in range(6):
        rig.known(f"r{n}").moved_at = rig.now
    rig.tick(2.0, alive=ALIVE)
    assert orders(rig) == []
    assert "no stream of d0 could go on at d1" in _streams(rig.core.tables)["streams_why"]


def test_what_cannot_move_stays() -> None:
    rig = fleet("on")
    for n in range(6):
        rig.known(f"r{n}").resumable = False
    rig.tick(2.0, alive=ALIVE)
    assert orders(rig) == []
