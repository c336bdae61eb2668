"""Limits set while the router runs, and the queue as operators see it."""

from __future__ import annotations

from common.messages import KeyLimits, Placed, PriorityClass, Refused
from tests.unit.services.router.admin.verbs.test_explain import ask
from tests.unit.services.router.rig import Rig, standard


def test_a_smaller_queue_refuses_the_newest() -> None:
    rig = standard(max_active=1)
    for i in range(6):
        rig.submit(f"r{i}")
    ask(rig, "limits", max_queue=2)
    assert [r.request_id for r in rig.take(Refused)] == ["r5", "r4", "r3"]
    assert all(r.code == "queue_full" for r in rig.take(Refused))


def test_more_slots_are_used_at_once_and_fewer_let_what_runs_go_on() -> None:
    rig = standard(max_active=1)
    for i in range(6):
        rig.submit(f"r{i}")
    rig.take(Placed)
    ask(rig, "limits", max_active=3)
    assert [p.request_id for p in rig.take(Placed)] == ["r1", "r2"]
    ask(rig, "limits", max_active=1)
    rig.ended("r0")
    rig.ended("r1")
    assert not rig.take(Placed)
    rig.ended("r2")
    assert [p.request_id for p in rig.take(Placed)] == ["r3"]


def test_a_keys_limit_set_here_is_in_force_until_it_is_reset(rig: Rig) -> None:
    said = KeyLimits(concurrency=8)
    ask(rig, "limits", key="k", concurrency=1)
    rig.submit("r0", key_id="k", limits=said)
    rig.submit("r1", key_id="k", limits=said)
    assert [r.code for r in rig.take(Refused)] == ["rate_limited"]
    shown = ask(rig, "limits", key="k")
    assert (shown["set_here"]["k"]["concurrency"], shown["keys"][0]["live"]) == (1, 1)
    ask(rig, "limits", key="k", reset=True)
    rig.submit("r2", key_id="k", limits=said)
    assert not rig.take(Refused)


def test_showing_changes_nothing(rig: Rig) -> None:
    before = rig.core.tables.limits
    assert ask(rig, "limits")["limits"]["max_queue"] == before.max_queue
    assert rig.core.tables.limits is before


def test_the_queue_is_shown_in_the_order_of_service() -> None:
    rig = standard(max_active=1)
    rig.submit("runs")
    rig.submit("b", priority=PriorityClass.BATCH, tenant="t1")
    rig.submit("s", deadline_ms=60_000.0)
    rig.submit("i", priority=PriorityClass.INTERACTIVE, key_id="k")
    rig.now += 0.5
    rows = ask(rig, "requests", queue=True)
    assert [row["request_id"] for row in rows] == ["i", "s", "b"]
    assert [row["class"] for row in rows] == ["interactive", "standard", "batch"]
    assert rows[0]["key_id"] == "k"
    assert rows[1]["waited_ms"] == 500.0
    assert 58_000 < rows[1]["start_within_ms"] < 60_000
    assert rows[2]["start_within_ms"] is None
    assert len(ask(rig, "requests", queue=True, limit=1)) == 1
