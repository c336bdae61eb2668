"""A worker whose connection broke, and that comes back as the same process, has outlived the
prompts that it had: they count no death for it."""

from __future__ import annotations

import pytest

from common.messages import Holding, Refused, Role
from tests.unit.services.router.fleet.test_prompt_quarantine import BAD, fleet, kill, submit, where
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


@pytest.mark.parametrize("number", [1, 3], ids=["one before", "the trial"])
def test_a_quarantine_ends_when_one_of_its_workers_comes_back(number: int) -> None:
    rig = fleet("d0", "d1", "d2", "d3")
    submit(rig, "r1")
    lost = []
    for attempt in (1, 2, 3):
        lost.append(where(rig, "r1", attempt))
        kill(rig, 1)
    assert [r.code for r in rig.take(Refused)] == ["request_quarantined"]
    returns(rig, Role.DECODE, "d3")
    submit(rig, "r2")
    assert [r.code for r in rig.take(Refused)] == ["request_quarantined"]
    returns(rig, Role.DECODE, lost[number - 1][:2])
    submit(rig, "r3")
    assert rig.take(Refused) == []
    assert where(rig, "r3")


def quarantined(workers: int, *, after_token: bool = False) -> tuple[Rig, list[str]]:
    """A prompt that died with so many workers, and which they were."""
    rig = fleet(*(f"d{n}" for n in range(9)))
    rig.gone("d8|1")
    submit(rig, "r1")
    lost = []
    for attempt in range(1, workers + 1):
        lost.append(where(rig, "r1", attempt))
        kill(rig, 1, after_token=after_token)
    assert [r.code for r in rig.take(Refused)] == ["request_quarantined"]
    return rig, lost


def is_refused(rig: Rig) -> bool:
    submit(rig, "r9")
    return bool(rig.take(Refused))


def test_a_quarantine_stays_while_the_worker_of_its_trial_holds_the_prompt() -> None:
    rig, lost = quarantined(3)
    returns(rig, Role.DECODE, lost[2][:2], held("r1", by=lost[2], attempt=3))
    assert is_refused(rig)


def test_a_quarantine_stays_while_enough_others_died() -> None:
    rig, lost = quarantined(5, after_token=True)
    for worker in lost[:2]:
        returns(rig, Role.DECODE, worker[:2])
    assert is_refused(rig)
    returns(rig, Role.DECODE, lost[2][:2])
    submit(rig, "r10")
    assert rig.take(Refused) == []


def test_a_prompt_of_a_quarantine_that_ended_has_no_more_trials_than_before() -> None:
    """Two workers have died of it, one of them alone: the next death is the last."""
    rig, lost = quarantined(3)
    returns(rig, Role.DECODE, lost[0][:2])
    assert deaths(rig) == set(lost[1:])
    submit(rig, "r2")
    assert len(rig.core.tables.quarantine.trials.rows) == 1
    kill(rig, 1, "r2")
    assert [r.code for r in rig.take(Refused)] == ["request_quarantined"]
