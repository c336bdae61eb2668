"""A worker whose connection broke, and that comes back as the same process, has outlived the
prompts that it had: they count no death for it."""

from __future__ import annotations

import pytest

from common.messages import Ended, Holding, Refused, Role
from services.router.fleet.prompt_quarantine import OTHERS_SECONDS, VERDICT_SECONDS
from tests.unit.services.router.fleet.test_prompt_quarantine import (
    BAD,
    fleet,
    kill,
    ready,
    submit,
    where,
)
from tests.unit.services.router.rig import Rig
from tests.unit.services.router.rules.test_reconcile import held, returns


def deaths(rig: Rig) -> set[str]:
    suspicion = rig.core.tables.quarantine._suspicions.get(BAD)
    return set(suspicion.deaths) if suspicion is not None else set()


@pytest.mark.parametrize("role", [Role.PREFILL, Role.DECODE])
def test_a_worker_that_comes_back_without_the_prompt_has_not_died_of_it(role: Role) -> None:
    """It need not report an end: perhaps its order was lost with the connection."""
    rig = Rig()
    rig.gateway()
    prefill, decode = rig.prefill("p0"), rig.decode("d0")
    submit(rig, "r1")
    worker = prefill if role is Role.PREFILL else decode
    rig.gone(worker)
    assert deaths(rig) == {worker}
    returns(rig, role, worker[:2])
    assert not rig.core.tables.quarantine.has_suspicions


def test_one_that_still_holds_it_may_die_of_it_yet() -> None:
    rig = fleet("d0", "d1")
    submit(rig, "r1")
    worker = where(rig)
    rig.gone(worker)
    returns(rig, Role.DECODE, worker[:2], held("r1", by=worker))
    assert deaths(rig) == {worker}


def test_a_report_that_is_not_complete_proves_nothing() -> None:
    rig = fleet("d0", "d1")
    submit(rig, "r1")
    worker = where(rig)
    rig.gone(worker)
    rig.worker(Role.DECODE, worker[:2])
    rig.receive(worker, Holding(complete=False))
    assert deaths(rig) == {worker}


def test_the_deaths_of_others_stay_and_their_prompt_is_tried_alone() -> None:
    rig = fleet("d0", "d1", "d2", "d3")
    submit(rig, "r1")
    lost = [where(rig)]
    kill(rig, 1)
    lost.append(where(rig, "r1", 2))
    kill(rig, 1)
    assert rig.core.tables.quarantine.is_suspect(BAD)
    returns(rig, Role.DECODE, lost[0][:2])
    assert deaths(rig) == {lost[1]}
    assert not rig.core.tables.quarantine.is_suspect(BAD)


def lose_three(rig: Rig) -> list[str]:
    """The workers that `r1` was on, the last of them alone, when their connections closed."""
    submit(rig, "r1")
    lost = []
    for attempt in (1, 2, 3):
        lost.append(where(rig, "r1", attempt))
        kill(rig, 1)
    return lost


def wait(rig: Rig, seconds: float) -> list[str]:
    """The codes of what was refused meanwhile."""
    rig.tick(seconds, alive=("g0|1", *ready(rig)))
    return [refused.code for refused in rig.take(Refused)]


@pytest.mark.parametrize("number", [1, 3], ids=["one before", "the trial"])
def test_a_quarantine_ends_when_one_of_its_workers_comes_back(number: int) -> None:
    rig = fleet("d0", "d1", "d2", "d3")
    lost = lose_three(rig)
    assert wait(rig, VERDICT_SECONDS + 0.1) == ["request_quarantined"]
    returns(rig, Role.DECODE, "d3")
    submit(rig, "r2")
    assert [r.code for r in rig.take(Refused)] == ["request_quarantined"]
    returns(rig, Role.DECODE, lost[number - 1][:2])
    submit(rig, "r3")
    assert rig.take(Refused) == []
    assert where(rig, "r3")


@pytest.mark.parametrize("number", [1, 3], ids=["one before", "the trial"])
def test_a_prompt_is_not_refused_while_a_worker_may_come_back_and_is_tried_when_one_does(
    number: int,
) -> None:
    rig = fleet("d0", "d1", "d2", "d3")
    lost = lose_three(rig)
    assert wait(rig, VERDICT_SECONDS - 0.2) == []
    assert where(rig, "r1", 4) == "", "d3 is free, and may not be the next one"
    returns(rig, Role.DECODE, lost[number - 1][:2])
    assert wait(rig, 1.0) == []
    assert rig.core.tables.attempts["r1", 4].trial


def test_an_end_that_is_told_late_is_heard_at_once_by_what_waits_for_the_verdict() -> None:
    rig = fleet("d0", "d1", "d2", "d3")
    lost = lose_three(rig)
    rig.worker(Role.DECODE, lost[1][:2])
    assert where(rig, "r1", 4) == ""
    rig.receive(lost[1], Ended(request_id="r1", attempt=2, error="cancelled"))
    assert rig.core.tables.attempts["r1", 4].trial


def test_a_router_that_stood_still_hears_first_who_came_back() -> None:
    rig = fleet("d0", "d1", "d2", "d3")
    lost = lose_three(rig)
    rig.tick()
    rig.now += 5.0
    rig.tick()
    assert rig.take(Refused) == []
    returns(rig, Role.DECODE, lost[2][:2])
    assert wait(rig, 1.0) == []
    assert rig.core.tables.attempts["r1", 4].trial


def test_a_verdict_needs_as_many_deaths_as_if_none_had_come_back() -> None:
    """One of those before the trial comes back while it runs. Then its worker dies, when no other
    has lately: this is the second death."""
    rig = fleet("d0", "d1", "d2", "d3", "d4")
    submit(rig, "r1")
    lost = []
    for attempt in (1, 2):
        lost.append(where(rig, "r1", attempt))
        kill(rig, 1)
    assert rig.core.tables.attempts["r1", 3].trial
    returns(rig, Role.DECODE, lost[0][:2])
    wait(rig, OTHERS_SECONDS + 1.0)
    kill(rig, 1)
    assert rig.core.tables.attempts["r1", 4].trial
    kill(rig, 1)
    assert wait(rig, VERDICT_SECONDS + 0.1) == ["request_quarantined"]


def test_workers_that_the_prompt_has_outlived_meanwhile_end_its_accusation() -> None:
    """Another request with it ends, on a worker that it was on before."""
    rig = fleet("d0", "d1", "d2", "d3", "d4")
    submit(rig, "r0")
    other = where(rig, "r0")
    lose_three(rig)
    rig.started("r0", peer=other)
    rig.ended("r0", peer=other)
    assert wait(rig, 1.0) == []
    assert where(rig, "r1", 4)
