"""Doubt, ejection and trust: the numbers, and what the core does with them."""

import pytest

from common.config import LivenessConfig
from common.messages import Abort, Failed, Load
from services.router.fleet.liveness import (
    may_eject,
    must_eject,
    probation_seconds,
    stalled,
    step_limit,
)
from services.router.records.states import WorkerState
from tests.unit.services.router.rig import Rig

L = LivenessConfig()


def busy(age_ms: float, p99_ms: float = 20.0, running: int = 1) -> Load:
    return Load(running=running, kv_used=0.01, step_age_ms=age_ms, step_ms_p99=p99_ms)


@pytest.mark.parametrize(
    ("p99_ms", "seconds"), [(0.0, 10.0), (5.0, 1.0), (100.0, 1.0), (101.0, 1.01), (700.0, 7.0)]
)
def test_a_steps_limit_follows_the_engines_own_steps(p99_ms: float, seconds: float) -> None:
    assert step_limit(L, Load(step_ms_p99=p99_ms)) == pytest.approx(seconds)


@pytest.mark.parametrize(
    ("load", "suspected", "given_up"),
    [
        (busy(900), False, False),
        (busy(1_100), True, False),
        (busy(2_100), True, True),
        (busy(2_100, running=0), False, False),
        (busy(2_100, p99_ms=300), False, False),
        (busy(2_100, p99_ms=0), False, False),
        (Load(silent_ms=2_900, step_ms_p99=20.0), False, False),
        (Load(silent_ms=3_100, step_ms_p99=20.0), True, False),
        (Load(silent_ms=29_000), False, False),
    ],
)
def test_an_engine_stalls_when_it_is_busy_or_does_not_answer(
    load: Load, suspected: bool, given_up: bool
) -> None:
    assert (stalled(L, load), must_eject(L, load)) == (suspected, given_up)


@pytest.mark.parametrize(
    ("flaps", "seconds"), [(0, 0.0), (1, 1.0), (2, 2.0), (5, 16.0), (6, 30.0), (10_000, 30.0)]
)
def test_who_flaps_must_prove_itself_for_longer(flaps: int, seconds: float) -> None:
    assert probation_seconds(L, flaps) == seconds


@pytest.mark.parametrize(
    ("pool", "most"), [(1, 1), (2, 1), (3, 1), (5, 1), (6, 2), (9, 3), (12, 4), (300, 102)]
)
def test_of_a_pool_a_third_at_most_and_always_one(pool: int, most: int) -> None:
    assert may_eject(L, pool, most - 1)
    assert not may_eject(L, pool, most)


def test_a_stalled_engine_is_suspected_then_its_requests_are_given_up(rig: Rig) -> None:
    rig.submit("r1")
    rig.started("r1")
    rig.sent.clear()
    rig.beat("d0|1", busy(1_200))
    assert rig.row("d0|1").state is WorkerState.SUSPECT
    assert rig.state("r1") == "decoding"
    assert not rig.sent or not rig.take(Failed)
    rig.beat("d0|1", busy(2_200))
    assert rig.row("d0|1").state is WorkerState.EJECTED
    assert "made no step for 2.2 s" in rig.take(Failed)[0].message
    assert [a.request_id for a in rig.take(Abort, "d0|1")] == ["r1"]
    assert rig.nothing_held()


def test_an_ejected_worker_returns_only_when_its_engine_steps_and_after_proof(rig: Rig) -> None:
    rig.beat("d0|1", busy(2_200))
    rig.beat("d0|1", busy(9_000))
    assert rig.row("d0|1").state is WorkerState.EJECTED
    rig.beat("d0|1", Load())
    assert rig.row("d0|1").state is WorkerState.JOINING
    rig.tick(0.8, alive=("d0|1", "g0|1", "p0|1"))
    assert rig.row("d0|1").state is WorkerState.JOINING
    rig.tick(0.6, alive=("d0|1", "g0|1", "p0|1"))
    assert rig.row("d0|1").state is WorkerState.READY


def test_a_stall_that_ends_in_time_costs_no_request(rig: Rig) -> None:
    rig.submit("r1")
    rig.beat("d0|1", busy(1_200))
    rig.tick(1.4, alive=("d0|1", "g0|1", "p0|1"))
    assert rig.row("d0|1").state is WorkerState.READY
    assert rig.state("r1") == "placed"


def flap(rig: Rig) -> float:
    """One flap; how long until the worker is trusted again, in seconds."""
    rig.beat("d0|1", busy(1_200))
    assert rig.row("d0|1").state is WorkerState.SUSPECT
    began = rig.now
    while rig.row("d0|1").state is not WorkerState.READY:
        rig.tick(0.2, alive=("d0|1", "g0|1", "p0|1"))
        assert rig.now < began + 60
    return rig.now - began


def test_a_worker_that_flaps_waits_longer_each_time_and_is_forgiven_in_the_end(rig: Rig) -> None:
    waits = [flap(rig) for _ in range(4)]
    assert waits == pytest.approx([1.2, 2.2, 4.2, 8.2], abs=0.3)
    rig.tick(61.0, alive=("d0|1", "g0|1", "p0|1"))
    assert flap(rig) == pytest.approx(1.2, abs=0.3)


def test_when_many_look_dead_only_a_third_are_given_up(rig: Rig) -> None:
    for i in range(1, 6):
        rig.decode(f"d{i}")
    names = [f"d{i}|1" for i in range(6)]
    rig.tick(5.0, alive=("g0|1", "p0|1"))
    states = [rig.row(name).state for name in names]
    assert states.count(WorkerState.EJECTED) == 2
    assert states.count(WorkerState.SUSPECT) == 4


def test_a_closed_connection_is_no_suspicion_and_knows_no_limit(rig: Rig) -> None:
    for i in range(1, 6):
        rig.decode(f"d{i}")
    for i in range(6):
        rig.gone(f"d{i}|1")
    assert {rig.row(f"d{i}|1").state for i in range(6)} == {WorkerState.GONE}
    assert rig.core.role_of("d0|1") is not None


def test_an_ejected_worker_is_still_pinged_so_that_its_death_is_found(rig: Rig) -> None:
    rig.beat("d0|1", busy(2_200))
    assert "d0|1" in rig.core.peers()
    rig.gone("d0|1")
    assert rig.row("d0|1").state is WorkerState.GONE
    assert "d0|1" not in rig.core.peers()
