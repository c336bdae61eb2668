"""Holds of KV across nodes: told with their owner, and orphans told from what is only in flight."""

from __future__ import annotations

from typing import Any

from common.errors import Code
from common.messages import Beat, KvCounts, Load
from services.router.admin import kv_ledger
from services.router.rules.moves import CONNECT_SECONDS
from tests.rigs.messages import kv_hold
from tests.unit.services.router.admin.verbs.test_explain import ask
from tests.unit.services.router.rig import Rig
from tests.unit.services.router.rules.test_moves import fleet, give_up


def report(rig: Rig, *, request_id: str = "r1", age_ms: float = 10.0, peer: str = "p0|1") -> None:
    """P says that it holds this request's KV for D."""
    about = {"peer": "d0", "side": "send", "blocks": 3, "bytes": 3072}
    hold = kv_hold(request_id, lease_left_ms=30_000.0 - age_ms, age_ms=age_ms, **about)
    counts = KvCounts(handoffs_out=2, bytes_out=2048, early_bytes_out=1024)
    rig.receive(peer, Beat(load=Load(), kv_counts=counts, kv_holds=(hold,), kv_holds_total=1))


def kv(rig: Rig, **args: Any) -> Any:
    return ask(rig, "kv", **args)


def test_a_hold_of_a_running_request_is_told_with_its_owner_and_is_no_orphan(rig: Rig) -> None:
    rig.submit()
    report(rig, age_ms=10.0)
    rig.now += 0.5
    told = kv(rig)
    (hold,) = told["holds"]
    assert hold == {
        "owner": "p0",
        "side": "send",
        "peer": "d0",
        "request_id": "r1",
        "attempt": 1,
        "state": "placed",
        "orphan": False,
        "blocks": 3,
        "bytes": 3072,
        "lease_left_ms": 29_490.0,
        "age_ms": 510.0,
    }
    assert (told["holds_total"], told["bytes_total"], told["orphans"]) == (1, 3072, 0)
    assert told["workers"][0]["counts"]["handoffs_out"] == 2


def test_a_hold_reported_long_after_its_request_ended_is_an_orphan(rig: Rig) -> None:
    rig.submit()
    rig.prefilled()
    rig.started()
    rig.ended()
    rig.now += kv_ledger.ORPHAN_SECONDS - 0.1
    report(rig, age_ms=5_000.0)
    assert (kv(rig)["orphans"], kv(rig)["holds"][0]["state"]) == (0, "over")
    rig.now += 0.2
    report(rig, age_ms=5_200.0)
    assert kv(rig)["orphans"] == kv_ledger.orphans(rig.core.shared) == 1


def test_a_hold_of_a_request_nobody_knows_becomes_an_orphan(rig: Rig) -> None:
    """The router was restarted, or P made it up; its own age counts, but not before the start."""
    report(rig, request_id="ghost", age_ms=60_000.0)
    assert (kv(rig)["orphans"], kv(rig)["holds"][0]["state"]) == (0, "unknown")
    rig.now += kv_ledger.ORPHAN_SECONDS + 0.1
    report(rig, request_id="ghost", age_ms=60_000.0)
    assert kv(rig)["orphans"] == 1


def test_a_worker_that_is_gone_holds_nothing_that_is_told(rig: Rig) -> None:
    report(rig)
    rig.gone("p0|1")
    told = kv(rig)
    assert told["holds"] == []
    assert [worker["name"] for worker in told["workers"]] == ["d0"]


def test_one_worker_and_fewer_rows(rig: Rig) -> None:
    report(rig)
    assert kv(rig, worker="d0")["holds"] == []
    assert kv(rig, limit=0)["holds"] == []
    assert kv(rig, limit=0)["holds_total"] == 1


def test_what_a_stream_left_behind_is_moving_until_its_lease_has_ended() -> None:
    rig = fleet()
    ask(rig, "move", request="r0", to="d1")
    rig.tick(CONNECT_SECONDS + 0.1)
    rig.ended("r0", error=Code.MOVED)
    rig.now += 3.0
    kept(rig, 1, lease_left_ms=500.0)
    (hold,) = kv(rig)["holds"]
    assert (hold["owner"], hold["state"], hold["orphan"]) == ("d0", "moving", False)
    kept(rig, 1, lease_left_ms=0.0)
    assert kv(rig)["orphans"] == 1, "its lease is over, and it is still there"


def test_what_is_handed_over_is_moving_until_the_stream_is_over() -> None:
    rig = fleet()
    ask(rig, "move", request="r0", to="d1")
    rig.tick(CONNECT_SECONDS + 0.1)
    give_up(rig)
    kept(rig, 2, lease_left_ms=30_000.0)
    assert kv(rig)["holds"][0]["state"] == "moving"
    rig.started("r0", 2, peer="d1|1")
    rig.ended("r0", 2, peer="d1|1")
    rig.now += kv_ledger.ORPHAN_SECONDS + 0.1
    kept(rig, 2, lease_left_ms=30_000.0)
    assert kv(rig)["orphans"] == 1


def kept(rig: Rig, attempt: int, *, lease_left_ms: float) -> None:
    """d0 says what it holds of this attempt."""
    hold = kv_hold("r0", attempt=attempt, lease_left_ms=lease_left_ms, side="send")
    rig.receive("d0|1", Beat(load=Load(), kv_holds=(hold,), kv_holds_total=1))
