"""A worker takes another role: it is emptied, says Hello anew, and nothing of the old one holds."""

from __future__ import annotations

from typing import Any

import pytest

from common.errors import BatonError
from common.messages import (
    Abort,
    Beat,
    Become,
    Decode,
    Failed,
    Fleet,
    Introduce,
    Leaving,
    Load,
    Move,
    Prefill,
    PrefixDelta,
    Refused,
    Role,
    WarmState,
    Welcome,
)
from services.router.events import RoleOrdered
from services.router.fleet.roles import RETURN_SECONDS
from services.router.records.worker import Worker
from tests.rigs.messages import worker_hello
from tests.unit.services.router.admin.verbs.test_explain import ask
from tests.unit.services.router.rig import Rig

GATEWAY, P0, P1, D0, D1 = "g0|1", "p0|1", "p1|1", "d0|1", "d1|1"
ALL = (GATEWAY, P0, P1, D0, D1)
P, D = Role.PREFILL, Role.DECODE


def says(peer: str, role: Role, *, home: Role | None = None, epoch: int = 0, **more: Any) -> Any:
    name, _, incarnation = peer.partition("|")
    about = {"configured_role": home or role, "role_epoch": epoch, **more}
    return worker_hello(role, name, incarnation, **about)


def join(rig: Rig, peer: str, role: Role, **more: Any) -> None:
    rig.receive(peer, says(peer, role, **more))
    rig.beat(peer, Load())


@pytest.fixture
def fleet() -> Rig:
    """Two workers of either role."""
    rig = Rig()
    rig.gateway()
    for peer in (P0, P1, D0, D1):
        join(rig, peer, P if peer.startswith("p") else D)
    rig.sent.clear()
    return rig


def row(rig: Rig, peer: str) -> Worker:
    worker = rig.core.shared.worker(peer)
    assert worker is not None
    return worker


def shown(rig: Rig, name: str) -> dict[str, Any]:
    return next(dict(row) for row in ask(rig, "workers") if row["name"] == name)


def refused(rig: Rig, worker: str, role: str) -> str:
    with pytest.raises(BatonError) as caught:
        ask(rig, "role", worker=worker, role=role)
    assert not rig.take(Become)
    return caught.value.message


def stream(rig: Rig, request_id: str = "r0") -> str:
    """Starts a stream. Returns the identity of its D."""
    rig.submit(request_id, resumable=True)
    attempt = rig.core.tables.attempts[request_id, 1]
    rig.prefilled(request_id, peer=attempt.prefill)
    rig.started(request_id, peer=attempt.decode)
    return attempt.decode


def test_an_idle_worker_is_told_and_serves_in_its_new_role(fleet: Rig) -> None:
    told = ask(fleet, "role", worker="d0", role="prefill")
    assert (told["state"], told["becomes"]) == ("switching", "prefill")
    assert not told["confirmed"], "it has not repeated the order in a beat"
    (order,) = fleet.take(Become, D0)
    assert (order.role, order.epoch) == (P, 1)
    assert fleet.take(Fleet)[-1].decode_ready == 1
    fleet.receive(D0, says(D0, P, home=D, epoch=1))
    assert fleet.take(Welcome, D0)
    fleet.beat(D0, Load())
    assert (row(fleet, D0).role, row(fleet, D0).ready) == (P, True)
    assert [i.prefill for i in fleet.take(Introduce, D1)] == ["d0"]
    latest = fleet.take(Fleet)[-1]
    assert (latest.prefill_ready, latest.decode_ready) == (3, 1)
    again = ask(fleet, "role", worker="d0", role="prefill")
    assert (again["state"], again["becomes"], again["confirmed"]) == ("ready", "", True)
    assert not fleet.take(Become)


def test_it_gets_work_of_its_new_role_alone(fleet: Rig) -> None:
    fleet.receive(D0, says(D0, P, home=D, epoch=1))
    fleet.beat(D0, Load())
    for n in range(6):
        fleet.submit(f"r{n}")
    assert fleet.take(Prefill, D0)
    assert not fleet.take(Decode, D0)
    assert len(fleet.take(Decode, D1)) == 6


def test_its_streams_move_and_it_gets_nothing_meanwhile(fleet: Rig) -> None:
    left = stream(fleet)
    other = D1 if left == D0 else D0
    ask(fleet, "role", worker=left.partition("|")[0], role="prefill")
    fleet.submit("r1")
    assert fleet.core.tables.attempts["r1", 1].decode == other
    fleet.receive(left, Beat(load=Load(running=1), becomes=P))
    fleet.tick(0.6, alive=(GATEWAY, P0, P1, other))
    (move,) = fleet.take(Move, left)
    assert (move.request_id, "becomes a prefill worker" in move.reason) == ("r0", True)


def test_an_order_is_said_again_until_a_beat_agrees(fleet: Rig) -> None:
    ask(fleet, "role", worker="d0", role="prefill")
    fleet.sent.clear()
    fleet.receive(D0, Beat(load=Load()))
    assert [b.role for b in fleet.take(Become, D0)] == [P]
    assert shown(fleet, "d0")["state"] == "switching", "an earlier beat undoes nothing"
    for _ in range(2):
        fleet.receive(D0, Beat(load=Load(), becomes=P))
    assert not fleet.take(Become)
    assert ask(fleet, "role", worker="d0", role="prefill")["confirmed"]
    told = shown(fleet, "d0")
    assert (told["state"], told["becomes"]) == ("switching", "prefill")


def test_an_order_can_be_taken_back(fleet: Rig) -> None:
    ask(fleet, "role", worker="d0", role="prefill")
    fleet.receive(D0, Beat(load=Load(), becomes=P))
    fleet.sent.clear()
    told = ask(fleet, "role", worker="d0", role="decode")
    assert (told["state"], told["becomes"]) == ("ready", "")
    assert [(b.role, b.epoch) for b in fleet.take(Become, D0)] == [(D, 1)]
    fleet.receive(D0, Beat(load=Load(), becomes=P))
    assert [b.role for b in fleet.take(Become, D0)] == [D]
    fleet.receive(D0, Beat(load=Load()))
    assert not fleet.take(Become)
    assert row(fleet, D0).ready


def test_a_router_that_knows_nothing_learns_what_was_ordered_and_what_was_done() -> None:
    """The switch is done or it is not, as the worker itself says."""
    rig = Rig()
    rig.gateway()
    join(rig, D1, D)
    rig.receive(D0, says(D0, D))
    rig.receive(D0, Beat(load=Load(running=1, kv_used=0.1), becomes=P))
    assert shown(rig, "d0")["becomes"] == "prefill"
    assert not rig.take(Become)
    rig.submit("r0")
    assert rig.core.tables.attempts["r0", 1].decode == D1
    later = Rig()
    later.receive(D0, says(D0, P, home=D, epoch=3, role_ms=7_000.0))
    told = shown(later, "d0")
    assert (told["role"], told["configured_role"], told["role_epoch"]) == ("prefill", "decode", 3)
    assert told["role_since_s"] == 7.0


def test_what_was_sent_too_late_goes_on_elsewhere(fleet: Rig) -> None:
    """Another router ordered it, and this one placed on it meanwhile."""
    fleet.submit("r0")
    attempt = fleet.core.tables.attempts["r0", 1]
    late = attempt.decode
    fleet.sent.clear()
    fleet.receive(late, says(late, P, home=D, epoch=1))
    (failed,) = fleet.take(Failed)
    assert (failed.request_id, "is a prefill worker now" in failed.message) == ("r0", True)
    assert [a.request_id for a in fleet.take(Abort, late)] == ["r0"], "it may have come after all"
    assert [a.request_id for a in fleet.take(Abort, attempt.prefill)] == ["r0"]
    fleet.submit("r0", 2)
    fleet.beat(late, Load())
    assert fleet.core.tables.attempts["r0", 2].decode not in ("", late)


def test_a_prompt_that_was_sent_too_late_is_computed_by_its_decode_worker(fleet: Rig) -> None:
    fleet.submit("r0")
    attempt = fleet.core.tables.attempts["r0", 1]
    late = attempt.prefill
    fleet.sent.clear()
    fleet.receive(late, says(late, D, home=P, epoch=1))
    assert [a.request_id for a in fleet.take(Abort, late)] == ["r0"]
    assert not fleet.take(Failed)
    fleet.beat(late, Load())
    fleet.started("r0", peer=attempt.decode, kv=None)
    fleet.ended("r0", peer=attempt.decode)
    assert fleet.state("r0") == "ended"


def test_what_is_known_of_its_prefix_cache_stays(fleet: Rig) -> None:
    fleet.receive(D0, PrefixDelta(stored=b"12345678" * 3))
    held = fleet.core.tables.placement_memory.prefixes.held
    before = held(D0)
    fleet.receive(D0, says(D0, P, home=D, epoch=1))
    assert held(D0) == before > 0


def test_a_new_process_takes_the_place_of_the_old_one_whatever_its_role(fleet: Rig) -> None:
    """It restarts in the role of the fleet file."""
    fleet.receive(D0, says(D0, P, home=D, epoch=1))
    fleet.beat(D0, Load())
    join(fleet, "d0|2", D)
    assert fleet.core.shared.fenced[D0] == "d0|2"
    assert fleet.core.shared.worker(D0) is None
    assert row(fleet, "d0|2").ready
    fleet.receive(D0, Beat(load=Load()))
    assert fleet.take(Refused, D0)


def test_a_router_that_knew_it_in_its_new_role_only_fences_it_too() -> None:
    rig = Rig()
    join(rig, D0, P, home=D, epoch=1)
    join(rig, "d0|2", D)
    assert rig.core.shared.fenced[D0] == "d0|2"


@pytest.mark.parametrize(
    "hello",
    [
        {"home": D, "epoch": 0},
        {"home": P, "epoch": 1},
        {"configured_role": None, "epoch": 1},
    ],
)
def test_a_hello_in_another_role_needs_a_later_epoch_of_the_same_worker(
    fleet: Rig, hello: dict[str, Any]
) -> None:
    fleet.receive(D0, says(D0, P, **hello))
    (refusal,) = fleet.take(Refused, D0)
    assert "was here before in another role" in refusal.message
    assert row(fleet, D0).role is D


def test_a_worker_that_was_out_of_reach_returns_in_its_new_role(fleet: Rig) -> None:
    left = stream(fleet)
    fleet.gone(left)
    fleet.sent.clear()
    fleet.receive(left, says(left, P, home=D, epoch=1))
    assert [a.request_id for a in fleet.take(Abort, left)] == ["r0"]
    fleet.beat(left, Load())
    assert row(fleet, left).role is P


def test_two_changes_that_a_router_missed_are_one_of_none(fleet: Rig) -> None:
    fleet.receive(D0, says(D0, D, epoch=2))
    ask(fleet, "role", worker="d0", role="prefill")
    assert [b.epoch for b in fleet.take(Become, D0)] == [3]


def test_the_last_of_a_role_keeps_it(fleet: Rig) -> None:
    ask(fleet, "role", worker="d0", role="prefill")
    fleet.sent.clear()
    assert "no other decode worker of model is ready" in refused(fleet, "d1", "prefill")
    fleet.gone(P0)
    assert "no other prefill worker of model is ready" in refused(fleet, "p1", "decode")


@pytest.mark.parametrize("why", ["drained", "leaving", "joining", "left"])
def test_no_role_changes_during_a_rollout(fleet: Rig, why: str) -> None:
    if why == "drained":
        ask(fleet, "drain", worker="p1")
    elif why == "joining":
        fleet.receive("p2|1", says("p2|1", P))
    else:
        fleet.receive(P1, Leaving(reason="stopping"))
    if why == "left":
        fleet.gone(P1)
    assert "during a rollout" in refused(fleet, "d0", "prefill")
    if why == "left":
        fleet.tick(RETURN_SECONDS + 0.2, alive=(GATEWAY, P0, D0, D1))
        assert ask(fleet, "role", worker="d0", role="prefill")["becomes"] == "prefill"


def test_only_a_ready_worker_that_can_changes_its_role(fleet: Rig) -> None:
    ask(fleet, "drain", worker="d0")
    assert "it is drained" in refused(fleet, "d0", "prefill")
    fleet.receive("w0|1", says("w0|1", D))
    fleet.receive("w0|1", Beat(load=Load(), warm=WarmState(asleep=False)))
    assert "warm worker" in refused(fleet, "w0", "prefill")
    fleet.decode("old")
    assert "older" in refused(fleet, "old", "prefill")
    fleet.receive("s0|1", worker_hello(Role.POOL, "s0", pull_blocks=8))
    fleet.beat("s0|1", Load())
    assert "pool" in refused(fleet, "s0", "decode")


def test_a_worker_that_would_be_refused_in_the_role_keeps_its_own(fleet: Rig) -> None:
    join(fleet, "d2|1", D, fingerprint="other")
    assert "another fingerprint" in refused(fleet, "d2", "prefill")
    join(fleet, "p0|9", D, home=D)
    assert "another worker is the decode worker p0" in refused(fleet, "prefill/p0", "decode")


def test_modes_without_prefill_workers_have_no_roles_to_change() -> None:
    rig = Rig(mode="replicated")
    for peer in (D0, D1):
        join(rig, peer, D)
    assert "mode replicated has decode workers only" in refused(rig, "d0", "prefill")


def test_an_order_for_a_worker_that_left_is_nothing(fleet: Rig) -> None:
    fleet.handle(RoleOrdered("d7|1", P))
    assert not fleet.take(Become)
