"""Which child is started again, when, and when the run ends; by instants that the tests choose."""

from __future__ import annotations

import pytest

from common.messages import Role
from services.up.plan import Child
from services.up.restart import FLAPPING_DEATHS, PAUSE_SECONDS_MAX, STEADY_SECONDS, Restarts

GIVE_UP_SECONDS = 600.0
ROLES = {
    "r0": Role.ROUTER, "g0": Role.GATEWAY, "h0": Role.HEALTH,
    "p0": Role.PREFILL, "d0": Role.DECODE, "d1": Role.DECODE,
}  # fmt: skip
FLEET = [Child(role, name) for name, role in ROLES.items()]


@pytest.fixture
def restarts() -> Restarts:
    """Of a fleet that was started at 0 and is ready at 10."""
    made = Restarts(FLEET, GIVE_UP_SECONDS, 0.0)
    for name in ROLES:
        made.ready(name, 10.0)
    return made


def crash(restarts: Restarts, name: str, times: int, now: float) -> list[float]:
    """Dies a second after each start. Returns the pauses."""
    pauses = []
    for _ in range(times):
        pauses.append(restarts.died(name, "exited with status 1", now))
        assert not restarts.give_up(name, now)
        now += pauses[-1] + 1.0
        assert not restarts.give_up(name, now)
    return pauses


def test_pauses_grow_to_a_minute_and_one_worker_never_ends_the_fleet(restarts: Restarts) -> None:
    pauses = crash(restarts, "d1", 200, 20.0)
    assert pauses[:8] == [0.5, 1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 60.0]
    assert set(pauses[8:]) == {PAUSE_SECONDS_MAX}


@pytest.mark.parametrize("name", ["p0", "h0"])
def test_what_a_fleet_serves_without_never_ends_it(restarts: Restarts, name: str) -> None:
    assert crash(restarts, name, 100, 20.0)[-1] == PAUSE_SECONDS_MAX


def test_one_that_was_ready_for_long_begins_anew(restarts: Restarts) -> None:
    crash(restarts, "d1", 5, 20.0)
    restarts.ready("d1", 100.0)
    assert restarts.died("d1", "died", 100.0 + STEADY_SECONDS - 1) == 16.0
    restarts.ready("d1", 300.0)
    assert restarts.died("d1", "died", 300.0 + STEADY_SECONDS) == 0.5


@pytest.mark.parametrize("name", ["r0", "g0"])
def test_a_necessary_role_that_is_gone_ends_the_run_at_its_time(
    restarts: Restarts, name: str
) -> None:
    now, pause = 20.0, restarts.died(name, "died", 20.0)
    while not restarts.give_up(name, now + pause):
        now += pause
        assert now < 20.0 + GIVE_UP_SECONDS
        pause = restarts.died(name, "died", now)
    assert now + pause == 20.0 + GIVE_UP_SECONDS, "the last pause ends when the time is over"
    assert "[up] give_up_s" in restarts.give_up(name, now + pause)


def test_the_time_of_a_role_begins_when_its_last_ready_child_died(restarts: Restarts) -> None:
    crash(restarts, "d0", 9, 20.0)
    restarts.died("d1", "died", 500.0)
    assert not restarts.give_up("d1", 500.0 + GIVE_UP_SECONDS - 1)
    assert restarts.give_up("d1", 500.0 + GIVE_UP_SECONDS)
    restarts.ready("d0", 1_050.0)
    restarts.died("d1", "died", 1_200.0)
    assert not restarts.give_up("d1", 1_200.0), "the other one serves"


def test_a_role_that_never_was_ready_is_not_waited_for() -> None:
    restarts = Restarts(FLEET, GIVE_UP_SECONDS, 0.0)
    restarts.died("d0", "died", 1.0)
    assert not restarts.give_up("d0", 1.0), "d1 may still become ready"
    restarts.died("d1", "died", 2.0)
    assert "would fail again" in restarts.give_up("d1", 2.0)
    restarts.died("p0", "died", 2.0)
    assert "would fail again" in restarts.give_up("p0", 2.0)


@pytest.mark.parametrize("name", ["p0", "h0"])
def test_a_fleet_that_serves_goes_on_without_a_role_that_cannot_start(name: str) -> None:
    restarts = Restarts(FLEET, GIVE_UP_SECONDS, 0.0)
    for necessary in ("r0", "g0"):
        restarts.ready(necessary, 1.0)
    restarts.died(name, "exited with status 1", 2.0)
    assert "would fail again" in restarts.give_up(name, 2.0), "nothing is served yet"
    restarts.ready("d1", 3.0)
    for death in range(100):
        restarts.died(name, "exited with status 1", 4.0 + death)
        assert not restarts.give_up(name, 4.0 + death)
    assert list(restarts.flapping(200.0)) == [name]


def test_a_role_with_one_that_was_ready_is_waited_for() -> None:
    restarts = Restarts(FLEET, GIVE_UP_SECONDS, 0.0)
    restarts.ready("d0", 1.0)
    restarts.died("d1", "died", 2.0)
    restarts.died("d0", "died", 3.0)
    assert not restarts.give_up("d0", 3.0)


def test_what_keeps_dying_is_told_until_it_was_ready_for_long(restarts: Restarts) -> None:
    for death in range(1, FLAPPING_DEATHS + 1):
        assert not restarts.flapping(20.0)
        restarts.died("d1", f"was killed by signal {death}", 20.0)
    sentence = "died 3 times in a row; the last time it was killed by signal 3"
    assert restarts.flapping(1_000.0) == {"d1": sentence}
    restarts.ready("d1", 1_000.0)
    assert restarts.flapping(1_000.0 + STEADY_SECONDS - 1) == {"d1": sentence}
    assert not restarts.flapping(1_000.0 + STEADY_SECONDS)
