"""A router that knows nothing, or knows wrong, learns from its peers' reports exactly."""

from collections.abc import Callable
from itertools import product
from typing import Any

import pytest

from common.messages import (
    Abort,
    Decode,
    Failed,
    HeldAttempt,
    Holding,
    Live,
    Load,
    Placed,
    Role,
    Took,
)
from services.router.records.states import WorkerState
from tests.rigs.messages import worker_hello
from tests.unit.services.router.rig import MOVED, Rig, standard

REBUILD: dict[str, Any] = {
    "rebuild_seconds": 2.0,
    "expected": {(Role.PREFILL, "p0"): "model", (Role.DECODE, "d0"): "model"},
}


def held(
    request_id: str = "r1", *, by: str = "d0|1", started: bool = False, **more: Any
) -> HeldAttempt:
    values: dict[str, Any] = {"prompt_tokens": 40, "max_tokens": 8, "prefill": "p0|1"}
    values |= {"decode": "d0|1", "gateway": "g0|1"} | more
    if by.startswith("p"):
        values |= {"prefill": by, "gateway": ""}
    else:
        values["decode"] = by
    return HeldAttempt(request_id, values.pop("attempt", 1), started=started, **values)


def reports(rig: Rig, peer: str, *attempts: HeldAttempt, complete: bool = True) -> None:
    rig.receive(peer, Holding(attempts=attempts, complete=complete))


def returns(rig: Rig, role: Role, name: str, *attempts: HeldAttempt) -> str:
    """A worker as it really greets: Hello, what it holds, a Beat."""
    peer = f"{name}|1"
    rig.receive(peer, worker_hello(role, name))
    reports(rig, peer, *attempts)
    rig.beat(peer, Load(running=len(attempts), kv_used=0.03 * len(attempts)))
    return peer


# ---------------------------------------------------------------- a router without a memory


def test_a_worker_that_has_only_said_hello_has_not_reported() -> None:
    rig = Rig(**REBUILD)
    for role, name in REBUILD["expected"]:
        rig.receive(f"{name}|1", worker_hello(role, name))
    assert rig.core.tables.rebuilding
    for peer in ("p0|1", "d0|1"):
        rig.beat(peer)
    assert not rig.core.tables.rebuilding


def test_what_runs_is_adopted_with_its_credits_and_ends_as_if_placed_here() -> None:
    rig = Rig(**REBUILD)
    rig.gateway()
    returns(rig, Role.PREFILL, "p0", held(by="p0|1"))
    returns(rig, Role.DECODE, "d0", held(), held("r2", started=True))
    assert (rig.state("r1"), rig.state("r2")) == ("placed", "decoding")
    decode, prefill = rig.row("d0|1"), rig.row("p0|1")
    assert decode.held_tokens == 2 * 48
    assert decode.preexisting_kv_tokens == 0, "what is known by name is not counted twice"
    assert (prefill.held_tokens, prefill.queued_tokens) == (48, 40)
    rig.prefilled("r1")
    rig.started("r1")
    rig.ended("r1")
    rig.ended("r2")
    assert rig.nothing_held()
    assert (rig.state("r1"), rig.state("r2")) == ("ended", "ended")


@pytest.mark.parametrize("first", ["submit", "report"])
def test_a_try_whose_placed_was_lost_is_found_and_not_placed_twice(first: str) -> None:
    rig = Rig(**REBUILD)
    rig.gateway()
    returns(rig, Role.PREFILL, "p0")
    if first == "submit":
        rig.submit("r1")
        assert rig.state("r1") == "queued"
        returns(rig, Role.DECODE, "d0", held())
    else:
        returns(rig, Role.DECODE, "d0", held())
        rig.submit("r1")
    placed = rig.take(Placed)
    assert [(p.request_id, p.attempt, p.decode) for p in placed] == [("r1", 1, "d0")]
    assert not rig.take(Decode), "it was placed once, by the router that died"
    rig.ended("r1")
    assert rig.nothing_held()
    assert len(rig.core.tables.waiting) == 0


def test_an_order_that_died_with_the_router_is_given_again() -> None:
    rig = Rig(**REBUILD)
    rig.gateway()
    rig.submit("r1")
    returns(rig, Role.PREFILL, "p0")
    assert not rig.take(Decode), "a decode worker has not reported yet"
    returns(rig, Role.DECODE, "d0")
    assert [d.request_id for d in rig.take(Decode)] == ["r1"]


def test_placing_waits_for_one_full_round_or_two_seconds() -> None:
    rig = Rig(**REBUILD)
    rig.gateway()
    returns(rig, Role.DECODE, "d0")
    rig.submit("r1")
    rig.tick(1.8, alive=("g0|1", "d0|1"))
    assert rig.state("r1") == "queued", "p0 has not reported"
    rig.tick(0.4, alive=("g0|1", "d0|1"))
    assert rig.state("r1") == "placed"
    rig.submit("r2")
    assert rig.state("r2") == "placed", "later requests do not wait"


def test_the_round_is_full_when_all_of_the_file_have_reported() -> None:
    rig = Rig(**REBUILD)
    rig.gateway()
    rig.submit("r1")
    returns(rig, Role.DECODE, "d0")
    returns(rig, Role.DECODE, "stranger")
    assert rig.state("r1") == "queued"
    returns(rig, Role.PREFILL, "p0")
    assert rig.state("r1") == "placed"


def test_a_gateway_known_from_its_requests_only_is_not_given_up() -> None:
    rig = Rig()
    returns(rig, Role.DECODE, "d0", held(prefill=""))
    rig.tick(6.0, alive=("d0|1",))
    assert rig.state("r1") == "placed"
    assert not rig.take(Abort)
    rig.gateway()
    rig.cancel("r1")
    assert [a.request_id for a in rig.take(Abort)] == ["r1"]
    rig.ended("r1", error="cancelled")
    assert rig.nothing_held()


def test_a_report_of_more_than_was_ever_granted_is_taken_as_it_is() -> None:
    rig = Rig()
    rig.gateway()
    many = [held(f"r{i}", prefill="") for i in range(12)]
    returns(rig, Role.DECODE, "d0", *many)
    assert len(rig.row("d0|1").held) == 12
    rig.submit("new")
    assert rig.state("new") == "queued"
    for request in many:
        rig.ended(request.request_id)
    assert rig.state("new") == "placed"


# ---------------------------------------------------------------- a router with a memory


def test_what_a_worker_no_longer_holds_is_released_at_once(rig: Rig) -> None:
    rig.submit("r1")
    rig.submit("r2")
    rig.receive("d0|1", worker_hello(Role.DECODE, "d0"))
    reports(rig, "d0|1", held("r2"))
    assert [f.request_id for f in rig.take(Failed)] == ["r1"]
    assert (rig.state("r1"), rig.state("r2")) == ("failed", "placed")
    assert rig.row("d0|1").held_tokens == 48


def test_what_was_placed_after_the_hello_may_be_under_way(rig: Rig) -> None:
    rig.receive("d0|1", worker_hello(Role.DECODE, "d0"))
    rig.submit("r1")
    reports(rig, "d0|1")
    assert rig.state("r1") == "placed"
    assert not rig.take(Failed)


def test_an_incomplete_report_proves_no_absence(rig: Rig) -> None:
    rig.submit("r1")
    rig.receive("d0|1", worker_hello(Role.DECODE, "d0"))
    reports(rig, "d0|1", complete=False)
    assert rig.state("r1") == "placed"


def test_a_prefill_worker_that_no_longer_holds_it_frees_its_credits_only(rig: Rig) -> None:
    rig.submit("r1")
    rig.receive("p0|1", worker_hello(Role.PREFILL, "p0"))
    reports(rig, "p0|1")
    assert rig.row("p0|1").held_tokens == 0
    assert rig.state("r1") == "placed"
    assert not rig.take(Failed)


@pytest.mark.parametrize("over", ["ended", "superseded", "orphaned"])
def test_a_worker_that_still_holds_what_is_over_is_told_to_stop(over: str, rig: Rig) -> None:
    rig.submit("r1")
    if over == "ended":
        rig.ended("r1")
    elif over == "superseded":
        rig.ended("r1", error="cancelled")
        rig.submit("r1", 2)
    else:
        rig.gone("d0|1")
    rig.sent.clear()
    rig.receive("d0|1", worker_hello(Role.DECODE, "d0"))
    reports(rig, "d0|1", held("r1"))
    assert ("r1", 1) in {(a.request_id, a.attempt) for a in rig.take(Abort, "d0|1")}
    assert ("r1", 1) not in rig.core.tables.attempts


def test_a_worker_that_only_beats_again_is_asked_what_it_holds(rig: Rig) -> None:
    rig.beat("d0|1", Load(running=1, step_age_ms=90_000.0))
    assert rig.row("d0|1").state is WorkerState.EJECTED
    rig.sent.clear()
    rig.beat("d0|1", Load())
    assert [type(s.message).__name__ for s in rig.sent if s.peer == "d0|1"] == ["Welcome"]


def test_what_a_gateway_no_longer_wants_is_aborted() -> None:
    rig = standard(max_active=1)
    rig.submit("r1")
    rig.submit("r2")
    rig.submit("r3")
    rig.gateway()
    rig.submit("r4")
    rig.receive("g0|1", Live(attempts=(("r3", 1),)))
    assert [rig.state(f"r{i}") for i in (1, 2, 3, 4)] == [
        "aborting",
        "cancelled",
        "queued",
        "queued",
    ]


def test_nothing_is_aborted_because_a_gateway_has_more_than_one_report_holds() -> None:
    rig = standard(max_active=1)
    rig.submit("r1")
    rig.submit("r2")
    rig.gateway()
    rig.receive("g0|1", Live(attempts=(("r2", 1),), complete=False))
    assert [rig.state(f"r{i}") for i in (1, 2)] == ["placed", "queued"]


def test_what_was_placed_after_the_hello_is_not_judged_by_a_later_report(rig: Rig) -> None:
    rig.submit("r1")
    rig.receive("d0|1", worker_hello(Role.DECODE, "d0"))
    reports(rig, "d0|1", held("r1"))
    reports(rig, "d0|1")
    assert rig.state("r1") == "placed", "its next report may have crossed the Decode"


def test_a_worker_is_told_to_end_what_a_newer_attempt_replaced(rig: Rig) -> None:
    rig.submit("r1", attempt=2)
    rig.sent.clear()
    rig.receive("d0|1", Took(held=held("r1")))
    aborts = rig.take(Abort, "d0|1")
    assert [(abort.request_id, abort.attempt) for abort in aborts] == [("r1", 1)]


# ---------------------------------------------------------------- two routers


def test_what_another_router_gives_a_worker_is_known_here_at_once(rig: Rig) -> None:
    rig.receive("d0|1", Took(held=held("r1")))
    rig.receive("p0|1", Took(held=held("r1", by="p0|1")))
    assert (rig.row("d0|1").held_tokens, rig.row("p0|1").held_tokens) == (48, 48)
    assert rig.row("p0|1").queued_tokens == 40
    rig.prefilled("r1")
    rig.started("r1", kv=MOVED)
    rig.ended("r1")
    assert rig.nothing_held()


def test_a_queued_try_that_another_router_placed_is_not_placed_again() -> None:
    rig = standard(max_active=1)
    rig.submit("r0")
    rig.submit("r1")
    assert rig.state("r1") == "queued"
    rig.receive("d0|1", Took(held=held("r1")))
    assert rig.state("r1") == "placed"
    rig.ended("r0")
    assert [d.request_id for d in rig.take(Decode)] == ["r0"]


def test_the_second_of_two_places_is_left_to_the_gateway(rig: Rig) -> None:
    rig.decode("d1")
    rig.submit("r1")
    other = "d1|1" if rig.known().decode == "d0|1" else "d0|1"
    rig.sent.clear()
    rig.receive(other, Took(held=held("r1", by=other)))
    assert not rig.sent
    rig.ended("r1", peer=other, error="cancelled")
    assert rig.state("r1") == "placed"


def test_what_d_declines_is_told_to_the_gateway_and_holds_nothing(rig: Rig) -> None:
    rig.submit("r1")
    rig.ended("r1", error="no_capacity")
    assert [(f.request_id, f.code) for f in rig.take(Failed)] == [("r1", "no_capacity")]
    assert rig.nothing_held()
    rig.submit("r1", 2)
    assert rig.state("r1", 2) == "placed"


LOSSES: dict[str, Callable[[Rig], object]] = {
    "d0": lambda rig: rig.gone("d0|1"),
    "p0": lambda rig: rig.gone("p0|1"),
    "g0": lambda rig: (rig.gone("g0|1"), rig.tick(2.4, alive=("d0|1", "p0|1"))),
}


@pytest.mark.parametrize(("loss", "started"), list(product(LOSSES, (False, True))))
def test_losing_sight_of_a_peer_never_aborts_what_another_router_placed(
    loss: str, *, started: bool, rig: Rig
) -> None:
    rig.receive("d0|1", Took(held=held("r1")))
    if started:
        rig.started("r1", kv=MOVED)
    LOSSES[loss](rig)
    assert not rig.take(Abort, "d0|1")
    if loss == "d0":
        returns(rig, Role.DECODE, "d0", held("r1", started=started))
        assert rig.known("r1").adopted
        assert not rig.take(Abort, "d0|1")
    rig.ended("r1")
    assert rig.nothing_held()


@pytest.mark.parametrize("loss", ["d0", "d0 ejected", "g0"])
def test_of_two_routers_none_aborts_what_it_merely_lost_sight_of(loss: str) -> None:
    """A stopped router wakes: all connections are closed, and its gateway went to the other."""
    rig = standard(standby={"r1": ""})
    rig.submit("r1")
    rig.started("r1")
    if loss == "d0":
        rig.gone("d0|1")
    elif loss == "g0":
        LOSSES["g0"](rig)
    else:
        rig.beat("d0|1", Load(running=1, step_age_ms=90_000.0))
    returns(rig, Role.DECODE, "d0", held("r1", started=True))
    assert not rig.take(Abort, "d0|1")
    assert rig.row("d0|1").held_tokens == 48
    rig.ended("r1")
    assert rig.nothing_held()
    assert not rig.core.tables.attempts


def test_of_two_routers_each_drops_what_waits_for_a_gateway_that_went() -> None:
    rig = standard(standby={"r1": ""}, max_active=1)
    rig.submit("r1")
    rig.submit("r2")
    LOSSES["g0"](rig)
    assert (rig.state("r1"), rig.state("r2")) == ("placed", "cancelled")


def test_reports_may_come_twice_and_late(rig: Rig) -> None:
    for _ in range(2):
        rig.receive("d0|1", Took(held=held("r1")))
        rig.receive("p0|1", Took(held=held("r1", by="p0|1")))
        reports(rig, "d0|1", held("r1"))
        reports(rig, "p0|1", held("r1", by="p0|1", started=True))
    assert rig.row("d0|1").held_tokens == 48
    assert rig.row("p0|1").queued_tokens == 0
    rig.ended("r1")
    rig.receive("p0|1", Took(held=held("r1", by="p0|1")))
    assert rig.nothing_held()


# ---------------------------------------------------------------- interrupted prefixes

PREFIX: dict[str, Callable[[Rig], object]] = {
    "hello": lambda rig: rig.receive("d0|1", worker_hello(Role.DECODE, "d0")),
    "holding": lambda rig: reports(rig, "d0|1", held("r1")),
    "beat": lambda rig: rig.beat("d0|1"),
    "gateway": lambda rig: rig.gateway(),
    "submit": lambda rig: rig.submit("r1"),
    "started": lambda rig: rig.started("r1"),
    "ended": lambda rig: rig.ended("r1"),
}
CUTS: dict[str, Callable[[Rig], object]] = {
    "d_gone": lambda rig: rig.gone("d0|1"),
    "d_fenced": lambda rig: rig.decode("d0", "2"),
    "g_gone": lambda rig: (rig.gone("g0|1"), rig.tick(2.4, alive=("d0|1", "p0|1"))),
    "time": lambda rig: rig.tick(2.4, alive=("g0|1", "d0|1", "p0|1")),
}


@pytest.mark.parametrize(("length", "cut"), list(product(range(len(PREFIX) + 1), CUTS)))
def test_every_prefix_of_a_rebuild_and_every_loss_is_settled(length: int, cut: str) -> None:
    rig = Rig(**REBUILD)
    rig.prefill()
    for step in list(PREFIX.values())[:length]:
        step(rig)
    CUTS[cut](rig)
    rig.cancel("r1")
    for peer in ("d0|1", "d0|2"):
        rig.ended("r1", peer=peer, error="cancelled")
    assert rig.nothing_held()
    assert not rig.core.tables.attempts
    assert not rig.core.tables.active
