"""Peers that were lost and come back, and a router that was restarted or stopped."""

import pytest

from common.messages import (
    Abort,
    Failed,
    HeldAttempt,
    Holding,
    Load,
    Placed,
    Role,
    Welcome,
)
from services.router.records.states import WorkerState
from tests.rigs.messages import worker_hello
from tests.unit.services.router.rig import MOVED, Rig, standard


def drops(rig: Rig) -> dict[str, int]:
    return rig.core.tables.counts.dropped


def computed(name: str) -> HeldAttempt:
    """P's word that it has this prompt's KV for d0."""
    return HeldAttempt(
        request_id=name, attempt=1, prompt_tokens=100, max_tokens=50, decode="d0|1", started=True
    )


def test_a_router_that_slept_blames_nobody(rig: Rig) -> None:
    rig.tick()
    rig.submit()
    rig.now += 20.0
    rig.tick()
    assert rig.state() == "placed"
    assert rig.row("d0|1").state is WorkerState.READY
    rig.tick(3.2)
    assert rig.row("d0|1").state is WorkerState.EJECTED


@pytest.mark.parametrize("by", ["hello", "beat"])
def test_a_worker_that_was_out_of_reach_comes_back_and_its_orphans_are_aborted(by: str) -> None:
    rig = standard()
    rig.submit("r1")
    rig.gone("d0|1")
    rig.sent.clear()
    if by == "hello":
        rig.receive("d0|1", worker_hello(Role.DECODE, "d0"))
        assert rig.take(Welcome)
    else:
        rig.beat("d0|1")
    assert rig.row("d0|1").state is WorkerState.JOINING
    assert [(a.request_id, a.attempt) for a in rig.take(Abort, "d0|1")] == [("r1", 1)]
    rig.beat("d0|1", Load())
    assert rig.row("d0|1").state is WorkerState.JOINING, "it was lost a moment ago"
    rig.now += 1.0
    rig.beat("d0|1", Load())
    assert rig.row("d0|1").state is WorkerState.READY
    rig.ended("r1", error="cancelled")
    assert drops(rig)["stale end"] == 1
    rig.submit("r2")
    assert rig.state("r2") == "placed"


@pytest.mark.parametrize("decoding", [True, False])
def test_kv_that_d_has_taken_is_not_kept_by_a_p_that_did_not_hear_of_it(decoding: bool) -> None:
    rig = standard()
    rig.submit("r1")
    rig.submit("r2")
    for name in ("r1", "r2"):
        rig.prefilled(name)
    rig.started("r1", kv=MOVED)
    if not decoding:
        rig.ended("r1")
    rig.gone("p0|1")
    rig.receive("p0|1", worker_hello(Role.PREFILL, "p0"))
    rig.sent.clear()
    rig.receive("p0|1", Holding(attempts=(computed("r1"),)))
    assert [(a.request_id, a.attempt) for a in rig.take(Abort, "p0|1")] == [("r1", 1)]
    rig.sent.clear()
    rig.receive("p0|1", Holding(attempts=(computed("r2"),)))
    assert not rig.take(Abort), "D may still fetch it"


def test_the_last_words_of_the_dead_change_nothing(rig: Rig) -> None:
    rig.submit("r1")
    rig.gone("d0|1")
    rig.ended("r1")
    assert rig.state("r1") == "failed"
    assert rig.row("d0|1").state is WorkerState.GONE
    assert drops(rig) == {"gone peer": 1}


def test_a_gateway_that_comes_back_hears_what_it_lost_and_resubmits_what_waited() -> None:
    rig = standard(max_active=1)
    rig.submit("r1")
    rig.submit("r2")
    rig.gone("g0|1")
    rig.tick(2.2, alive=("p0|1", "d0|1"))
    rig.ended("r1", error="cancelled")
    rig.sent.clear()
    rig.gateway()
    assert [f.request_id for f in rig.take(Failed, "g0|1")] == ["r1"]
    rig.submit("r2")
    assert rig.state("r2") == "placed"
    rig.submit("r1")
    assert [f.request_id for f in rig.take(Failed)] == ["r1"]
    rig.submit("r1", 2)
    assert rig.known("r1", 2).state.value == "queued"
    rig.ended("r2")
    rig.submit("r2")
    assert [f.request_id for f in rig.take(Failed)] == ["r2"]


def test_the_first_submit_of_a_gateway_that_was_silent_for_too_long_is_placed() -> None:
    rig = standard()
    rig.tick(8.0, alive=("p0|1", "d0|1"))
    assert not rig.core.shared.live_gateways()
    rig.submit("r1")
    assert rig.state("r1") == "placed"
    assert [p.request_id for p in rig.take(Placed, "g0|1")] == ["r1"]
    assert rig.core.shared.live_gateways()
    assert not drops(rig)


def test_a_cancel_brings_a_silent_gateway_back_too() -> None:
    rig = standard()
    rig.submit("r1")
    rig.gone("g0|1")
    rig.cancel("r1")
    assert rig.state("r1") == "aborting"
    assert rig.core.shared.live_gateways()


def test_a_gateway_that_is_back_in_a_moment_has_lost_nothing() -> None:
    rig = standard(max_active=1)
    rig.submit("r1")
    rig.submit("r2")
    rig.take(Placed)
    rig.gone("g0|1")
    rig.tick(1.0, alive=("p0|1", "d0|1"))
    rig.ended("r1")
    assert rig.state("r2") == "placed", "it keeps its place and its turn"
    rig.gateway()
    rig.submit("r2")
    assert [p.request_id for p in rig.take(Placed)][-1] == "r2"
    assert not rig.take(Abort, "d0|1")
    assert not rig.take(Failed)


def test_a_gateway_that_is_back_hears_of_a_worker_lost_meanwhile(rig: Rig) -> None:
    rig.submit("r1")
    rig.gone("g0|1")
    rig.gone("d0|1")
    rig.sent.clear()
    rig.gateway()
    assert [f.request_id for f in rig.take(Failed)] == ["r1"]


def test_a_gateway_that_never_noticed_that_it_was_away_hears_of_what_waited_too() -> None:
    rig = standard(max_active=1)
    rig.submit("r1")
    rig.submit("r2")
    rig.tick(3.4, alive=("d0|1", "p0|1"))
    assert rig.state("r2") == "cancelled"
    rig.sent.clear()
    rig.beat("g0|1")
    assert [f.request_id for f in rig.take(Failed)] == ["r1", "r2"]


def test_a_gateway_that_says_hello_again_hears_again_what_failed(rig: Rig) -> None:
    """Its connection broke and came back between two pings; what was under way is lost."""
    rig.submit("r1")
    rig.gone("d0|1")
    assert [f.request_id for f in rig.take(Failed)] == ["r1"]
    rig.gateway()
    assert [f.request_id for f in rig.take(Failed)] == ["r1"]


def test_hello_again_from_one_who_is_there_disturbs_nothing(rig: Rig) -> None:
    rig.submit("r1")
    rig.sent.clear()
    rig.receive("d0|1", worker_hello(Role.DECODE, "d0"))
    rig.gateway()
    assert len(rig.take(Welcome)) == 2
    assert rig.state("r1") == "placed"
    assert rig.row("d0|1").state is WorkerState.READY


def test_load_of_an_earlier_router_counts_until_it_is_gone() -> None:
    rig = Rig()
    rig.gateway()
    rig.receive("d0|1", worker_hello(Role.DECODE, "d0", seqs=4))
    rig.beat("d0|1", Load(running=2, waiting=1, kv_used=0.5))
    assert rig.row("d0|1").preexisting_kv_tokens == 800
    rig.submit("large", prompt=700, out=100)
    assert rig.state("large") == "queued"
    rig.submit("small", prompt=30, out=2)
    assert rig.state("small") == "placed"
    rig.submit("small2", prompt=30, out=2)
    assert rig.state("small2") == "queued"
    rig.beat("d0|1", Load(running=4, waiting=0, kv_used=0.9))
    assert rig.row("d0|1").preexisting_kv_tokens == 800
    rig.beat("d0|1", Load(running=1, waiting=0, kv_used=0.02))
    assert rig.row("d0|1").preexisting_kv_tokens == 32
    assert rig.row("d0|1").preexisting_requests == 1
    assert rig.state("large") == "placed", "room that a beat shows is used at once"


def test_credits_of_an_end_that_was_never_heard_come_back() -> None:
    rig = standard(idle_seconds=5.0)
    rig.submit("r1")
    rig.started("r1", kv=MOVED)
    for _ in range(20):
        rig.tick(0.4, alive=("g0|1", "p0|1"))
        rig.beat("d0|1", Load())
    assert rig.state("r1") == "failed"
    assert [f.request_id for f in rig.take(Failed)] == ["r1"]
    assert rig.nothing_held()


def test_a_busy_engine_keeps_its_requests() -> None:
    rig = standard(idle_seconds=5.0)
    rig.submit("r1")
    for i in range(40):
        rig.tick(0.4, alive=("g0|1", "p0|1"))
        rig.beat("d0|1", Load(kv_used=0.01) if i % 10 == 0 else Load())
    assert rig.state("r1") == "placed"
