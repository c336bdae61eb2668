"""A prompt that workers died with is tried once more, alone; the next death has it refused to
everybody, until its time is over or it is lifted."""

from __future__ import annotations

from typing import Any

import pytest

from common.messages import Abort, Ended, Failed, Load, PrefillEnded, Refused, Role
from services.router.events import PromptsCleared
from services.router.fleet.prompt_quarantine import (
    OTHERS_SECONDS,
    PROOF_SECONDS,
    QUARANTINE_SECONDS,
    QUARANTINED_MAX,
    SUSPECTS_MAX,
    VERDICT_SECONDS,
    Death,
    PromptQuarantine,
)
from services.router.placement.types import WaitFor
from services.router.records.states import WorkerState
from tests.unit.services.router.admin.verbs.test_explain import ask
from tests.unit.services.router.rig import Rig

BAD, GOOD = b"b" * 16, b"g" * 16


def submit(rig: Rig, request_id: str, attempt: int = 1, digest: bytes = BAD) -> None:
    rig.submit(request_id, attempt, prompt_digest=digest)


def fleet(*names: str, **settings: Any) -> Rig:
    rig = Rig(remote_prefill="never", **settings)
    rig.gateway()
    for name in names:
        rig.beat(rig.decode(name), Load())
    return rig


def where(rig: Rig, request_id: str = "r1", attempt: int = 1) -> str:
    """The worker on which this attempt is; empty for none."""
    row = rig.core.tables.attempts.get((request_id, attempt))
    return row.decode if row is not None else ""


def kill(rig: Rig, attempts: int, request_id: str = "r1", *, after_token: bool = False) -> None:
    """So many times, the worker under the request dies, and the request is submitted again."""
    tables = rig.core.tables
    for _ in range(attempts):
        number = tables.newest[request_id]
        worker = where(rig, request_id, number)
        if after_token:
            rig.started(request_id, number, peer=worker)
        rig.gone(worker)
        submit(rig, request_id, number + 1)


def refusals(rig: Rig) -> list[str]:
    """The codes of what was refused, when a verdict was due."""
    rig.tick(VERDICT_SECONDS + 0.1, alive=("g0|1", *ready(rig)))
    return [refused.code for refused in rig.take(Refused)]


def poisoned() -> Rig:
    """`r1` killed three workers, the last of them alone, and is in quarantine."""
    rig = fleet("d0", "d1", "d2", "d3")
    submit(rig, "r1")
    kill(rig, 3)
    rig.tick(VERDICT_SECONDS + 0.1, alive=("g0|1", *ready(rig)))
    return rig


def test_after_three_workers_the_prompt_is_refused_whoever_sends_it() -> None:
    rig = poisoned()
    submit(rig, "r2")
    refused = rig.take(Refused)
    assert [r.code for r in refused] == ["request_quarantined"] * 2
    assert "3 workers died with this prompt (request r1)" in refused[0].message
    assert refused[0].retry_after_ms == 0
    submit(rig, "r3", digest=GOOD)
    assert rig.take(Refused) == []
    assert where(rig, "r3") == "d3|1"


def test_a_suspect_is_tried_alone_and_its_company_is_spared() -> None:
    """Five requests lose two workers; one after the other they run alone, and nobody is refused."""
    rig = fleet("d0", "d1", "d2", "d3")
    names = [f"r{n}" for n in range(5)]
    for name in names:
        submit(rig, name, digest=name.encode() * 8)
    for _ in range(2):
        lost = [r for r in names if where(rig, r, rig.core.tables.newest[r])]
        for worker in {where(rig, r, rig.core.tables.newest[r]) for r in lost[:1]}:
            gone = [r for r in names if where(rig, r, rig.core.tables.newest[r]) == worker]
            rig.gone(worker)
            for name in gone:
                submit(rig, name, rig.core.tables.newest.get(name, 1) + 1, name.encode() * 8)
    assert rig.take(Refused) == []


def test_on_trial_it_has_a_worker_of_its_own_until_it_has_proved_itself() -> None:
    rig = fleet("d0", "d1", "d2", "d3")
    submit(rig, "r1")
    kill(rig, 2)
    trial = where(rig, "r1", 3)
    other = ({"d0|1", "d1|1", "d2|1", "d3|1"} & ready(rig)) - {trial}
    for n in range(6):
        submit(rig, f"x{n}", digest=bytes([n]) * 16)
        assert where(rig, f"x{n}") in other
    rig.started("r1", 3, peer=trial)
    rig.tick(PROOF_SECONDS - 0.2, alive=("g0|1", trial, *other))
    assert list(rig.core.tables.quarantine.trials.rows) == [trial]
    rig.tick(0.4, alive=("g0|1", trial, *other))
    assert rig.core.tables.quarantine.trials.rows == {}
    assert not rig.core.tables.quarantine.is_suspect(BAD)


def ready(rig: Rig) -> set[str]:
    return {worker.identity for worker in rig.core.tables.workers.values() if worker.ready}


def test_a_trial_waits_for_a_worker_with_nothing_on_it_and_then_takes_the_least_company() -> None:
    rig = fleet("d0", "d1", "d2", "d3")
    submit(rig, "r1")
    kill(rig, 1)
    last = where(rig, "r1", 2)
    for n in range(9):
        submit(rig, f"x{n}", digest=bytes([n]) * 16)
    rig.gone(last)
    submit(rig, "r1", 3)
    assert where(rig, "r1", 3) == ""
    (aside,) = rig.core.tables.quarantine.trials.rows
    company = {where(rig, f"x{n}") for n in range(9) if where(rig, f"x{n}")}
    assert aside in company
    before = len(rig.row(aside).held)
    submit(rig, "y", digest=GOOD)
    assert where(rig, "y") not in ("", aside)
    rig.tick(1.8, alive=("g0|1", *ready(rig)))
    assert where(rig, "r1", 3) == ""
    rig.tick(0.6, alive=("g0|1", *ready(rig)))
    assert where(rig, "r1", 3) == aside
    assert len(rig.row(aside).held) == before + 1


def test_a_trial_begins_as_soon_as_a_worker_has_nothing() -> None:
    rig = fleet("d0", "d1", "d2", "d3")
    submit(rig, "r1")
    kill(rig, 1)
    for n in range(8):
        submit(rig, f"x{n}", digest=bytes([n]) * 16)
    rig.gone(where(rig, "r1", 2))
    submit(rig, "r1", 3)
    (aside,) = rig.core.tables.quarantine.trials.rows
    for n in range(8):
        if where(rig, f"x{n}") == aside:
            rig.ended(f"x{n}", peer=aside)
    assert where(rig, "r1", 3) == aside


def test_while_others_die_too_a_suspect_that_made_tokens_has_three_trials() -> None:
    rig = fleet(*(f"d{n}" for n in range(9)))
    rig.gone("d8|1")
    submit(rig, "r1")
    kill(rig, 4, after_token=True)
    assert refusals(rig) == []
    assert where(rig, "r1", 5)
    kill(rig, 1)
    assert refusals(rig) == ["request_quarantined"]


def test_a_prompt_that_never_makes_a_token_has_one_trial_whatever_else_dies() -> None:
    rig = fleet(*(f"d{n}" for n in range(9)))
    submit(rig, "r1")
    for other in ("d8|1", "d7|1", "d6|1"):
        rig.gone(other)
        kill(rig, 1)
    assert refusals(rig) == ["request_quarantined"]
    assert len(rig.core.tables.quarantine.rows(rig.now)[0].workers) == 3


@pytest.mark.parametrize("trial_makes_token", [False, True])
def test_only_three_deaths_without_a_token_between_them_are_no_chance(
    *, trial_makes_token: bool
) -> None:
    """The first worker dies in the middle of the answer, as most do that are killed by chance."""
    rig = fleet(*(f"d{n}" for n in range(9)))
    rig.gone("d8|1")
    submit(rig, "r1")
    kill(rig, 1, after_token=True)
    kill(rig, 1)
    kill(rig, 1, after_token=trial_makes_token)
    assert bool(refusals(rig)) is False
    kill(rig, 1)
    assert bool(refusals(rig)) is not trial_makes_token


def test_a_trial_that_gets_further_than_the_attempts_before_it_is_not_the_last() -> None:
    """No other worker died, because the fleet has few."""
    rig = fleet(*(f"d{n}" for n in range(9)))
    submit(rig, "r1")
    kill(rig, 2)
    kill(rig, 1, after_token=True)
    assert refusals(rig) == []
    kill(rig, 2)
    assert refusals(rig) == ["request_quarantined"]


@pytest.mark.parametrize("had_token", [False, True])
def test_after_a_death_without_a_token_one_worker_at_a_time_has_the_prompt(
    *, had_token: bool
) -> None:
    rig = Rig(remote_prefill="always")
    rig.gateway()
    rig.prefill("p0")
    rig.decode("d0")
    rig.decode("d1")
    submit(rig, "r1")
    at = where(rig)
    if had_token:
        rig.started(peer=at)
    rig.gone(at)
    submit(rig, "r1", 2)
    assert bool(rig.core.tables.attempts["r1", 2].prefill) is had_token


@pytest.mark.parametrize("role", [Role.PREFILL, Role.DECODE])
def test_a_worker_that_was_given_up_and_reports_the_end_has_not_died_of_the_prompt(
    role: Role,
) -> None:
    rig = Rig()
    rig.gateway()
    prefill, decode = rig.prefill("p0"), rig.decode("d0")
    submit(rig, "r1")
    worker = prefill if role is Role.PREFILL else decode
    rig.gone(worker)
    assert len(rig.core.tables.quarantine._suspicions[BAD].deaths) == 1
    rig.worker(role, worker[:2])
    if role is Role.PREFILL:
        rig.prefilled()
    else:
        rig.receive(worker, Ended(request_id="r1", attempt=1, error="cancelled"))
    assert not rig.core.tables.quarantine.has_suspicions


def test_another_workers_death_long_ago_is_no_excuse() -> None:
    rig = fleet("d0", "d1", "d2", "d3")
    rig.gone("d3|1")
    rig.tick(OTHERS_SECONDS + 1, alive=("g0|1", "d0|1", "d1|1", "d2|1"))
    submit(rig, "r1")
    kill(rig, 3)
    assert refusals(rig) == ["request_quarantined"]


@pytest.mark.parametrize("how", ["it ends", "it runs on"])
def test_a_prompt_that_a_worker_survives_begins_anew(how: str) -> None:
    rig = fleet("d0", "d1", "d2", "d3")
    submit(rig, "r1")
    kill(rig, 1)
    at = where(rig, "r1", 2)
    rig.started("r1", 2, peer=at)
    if how == "it ends":
        rig.ended("r1", 2, peer=at)
        submit(rig, "r2")
        kill(rig, 1, "r2")
        assert not rig.core.tables.quarantine.is_suspect(BAD)
        return
    rig.tick(PROOF_SECONDS + 0.2, alive=("g0|1", *ready(rig)))
    kill(rig, 1)
    assert not rig.core.tables.quarantine.is_suspect(BAD)


def test_a_prompt_that_killed_prefill_workers_is_not_cleared_by_a_decode_worker() -> None:
    rig = Rig()
    rig.gateway()
    for name in ("p0", "p1"):
        rig.prefill(name)
    rig.beat(rig.decode("d0"), Load())
    for request_id, prefill in (("r1", "p0|1"), ("r2", "p1|1")):
        submit(rig, request_id)
        rig.gone(rig.core.tables.attempts[request_id, 1].prefill)
        rig.started(request_id, peer="d0|1")
        rig.ended(request_id, peer="d0|1")
        assert prefill
    rig.prefill("p2")
    submit(rig, "r3")
    row = rig.core.tables.attempts["r3", 1]
    assert (row.trial, row.decode, row.prefill) == (True, "d0|1", "")


def test_one_trial_of_a_prompt_at_a_time_and_its_verdict_is_for_all() -> None:
    rig = fleet("d0", "d1", "d2", "d3", "d4")
    submit(rig, "r1")
    kill(rig, 2)
    submit(rig, "r2")
    assert (where(rig, "r1", 3) != "", where(rig, "r2")) == (True, "")
    rig.gone(where(rig, "r1", 3))
    rig.tick(VERDICT_SECONDS + 0.1, alive=("g0|1", *ready(rig)))
    assert [(r.code, r.request_id) for r in rig.take(Refused)] == [("request_quarantined", "r2")]


def test_a_hung_engine_counts_as_a_death() -> None:
    rig = fleet("d0", "d1", "d2", "d3", worker_timeout_ms=2_000.0)
    for attempt in (1, 2):
        submit(rig, "r1", attempt)
        hung = where(rig, "r1", attempt)
        rig.tick(2.4, alive=("g0|1", *(ready(rig) - {hung})))
        assert rig.row(hung).state is WorkerState.EJECTED
        rig.gone(hung)
    assert rig.core.tables.quarantine.is_suspect(BAD)


def test_a_worker_that_is_set_aside_and_lost_is_replaced() -> None:
    rig = fleet("d0", "d1", "d2", "d3")
    submit(rig, "r1")
    kill(rig, 1)
    for n in range(9):
        submit(rig, f"x{n}", digest=bytes([n]) * 16)
    rig.gone(where(rig, "r1", 2))
    submit(rig, "r1", 3)
    (aside,) = rig.core.tables.quarantine.trials.rows
    rig.gone(aside)
    rig.tick()
    (other,) = rig.core.tables.quarantine.trials.rows
    assert other in ready(rig)


def test_a_trial_that_nobody_waits_for_gives_its_worker_back() -> None:
    rig = fleet("d0", "d1", "d2", "d3")
    submit(rig, "r1")
    kill(rig, 1)
    for n in range(9):
        submit(rig, f"x{n}", digest=bytes([n]) * 16)
    rig.gone(where(rig, "r1", 2))
    submit(rig, "r1", 3)
    assert rig.core.tables.quarantine.trials.rows
    rig.cancel("r1", 3)
    rig.tick()
    assert not rig.core.tables.quarantine.trials.rows


def test_one_death_bars_nothing() -> None:
    rig = Rig(remote_prefill="never")
    rig.gateway()
    rig.decode("d0")
    rig.decode("d1")
    submit(rig, "r1")
    rig.gone(rig.core.tables.attempts["r1", 1].decode)
    submit(rig, "r1", 2)
    assert rig.take(Refused) == []


def test_it_is_refused_for_a_while_only() -> None:
    rig = poisoned()
    rig.take(Refused)
    rig.tick(QUARANTINE_SECONDS + 1, alive=("g0|1", "d3|1"))
    submit(rig, "r2")
    assert rig.take(Refused) == []


@pytest.mark.parametrize("digest", [None, BAD])
def test_an_operator_lifts_it(digest: bytes | None) -> None:
    rig = poisoned()
    rig.take(Refused)
    rig.handle(PromptsCleared(digest))
    submit(rig, "r2")
    assert rig.take(Refused) == []


def verb(rig: Rig, **args: str) -> list[str]:
    """The digests that the admin verb shows."""
    return [row["digest"] for row in ask(rig, "quarantine", **args)["prompts"]]


def test_the_admin_verb_lists_and_lifts_it() -> None:
    rig = poisoned()
    submit(rig, "r2")
    assert verb(rig) == [BAD.hex()]
    assert verb(rig, action="clear", prompt="00") == [BAD.hex()]
    assert verb(rig, action="clear", decode="d2") == [BAD.hex()], "that is about a pair"
    assert verb(rig, action="clear", prompt=BAD.hex()) == []


def test_a_worker_that_leaves_after_its_drain_is_no_death() -> None:
    rig = Rig(remote_prefill="never")
    rig.gateway()
    for name in ("d0", "d1", "d2"):
        rig.decode(name)
    for attempt in (1, 2):
        submit(rig, "r1", attempt)
        at = where(rig, "r1", attempt)
        rig.leave(at)
        rig.receive(at, Ended(request_id="r1", attempt=attempt, error="draining"))
        rig.gone(at)
    assert not rig.core.tables.quarantine.has_suspicions


def test_a_worker_that_dies_while_it_drains_is_a_death() -> None:
    rig = fleet("d0", "d1")
    submit(rig, "r1")
    rig.leave(where(rig))
    rig.gone(where(rig))
    assert len(rig.core.tables.quarantine._suspicions[BAD].deaths) == 1


def test_all_that_a_prefill_worker_had_to_compute_is_suspected() -> None:
    rig = Rig()
    rig.gateway()
    rig.prefill("p0")
    rig.decode("d0")
    for request_id in ("r1", "r2", "r3"):
        submit(rig, request_id, digest=request_id.encode() * 8)
    rig.receive("p0|1", PrefillEnded(request_id="r1", attempt=1, elapsed_ms=1.0))
    rig.gone("p0|1")
    assert list(rig.core.tables.quarantine._suspicions) == [b"r2" * 8, b"r3" * 8]
    assert rig.take(Failed) == [], "D computes what P did not"
    rig.gone("d0|1")
    submit(rig, "r4", digest=b"r2" * 8)
    assert rig.take(Refused) == []
    assert rig.core.tables.attempts["r4", 1].waits_for is WaitFor.WORKER


@pytest.mark.parametrize("lives", [False, True])
def test_a_worker_that_the_gateway_lost_first_counts_until_it_says_that_it_lives(
    *, lives: bool
) -> None:
    rig = fleet("d0", "d1", "d2", "d3")
    submit(rig, "r1")
    kill(rig, 1)
    left = where(rig, "r1", 2)
    submit(rig, "r1", 3)
    assert rig.core.tables.attempts["r1", 3].trial
    if lives:
        rig.receive(left, Ended(request_id="r1", attempt=2, error="cancelled"))
    else:
        rig.gone(left)
    assert rig.core.tables.quarantine.is_suspect(BAD) is not lives
    assert rig.take(Refused) == []


def test_a_trial_that_the_gateway_left_is_over_when_its_worker_says_so() -> None:
    rig = fleet("d0", "d1", "d2", "d3")
    submit(rig, "r1")
    kill(rig, 2)
    at = where(rig, "r1", 3)
    submit(rig, "r1", 4)
    rig.tick(0.4, alive=("g0|1", *ready(rig)))
    assert where(rig, "r1", 4) == ""
    rig.gone(at)
    assert refusals(rig) == ["request_quarantined"]


@pytest.mark.parametrize("lives", [False, True])
def test_a_prefill_worker_that_is_found_dead_after_its_d_counts(*, lives: bool) -> None:
    rig = Rig()
    rig.gateway()
    rig.prefill("p0")
    rig.decode("d0")
    rig.decode("d1")
    submit(rig, "r1")
    rig.gone(where(rig))
    if lives:
        rig.beat("p0|1")
    rig.gone("p0|1")
    assert rig.core.tables.quarantine.is_suspect(BAD) is not lives


def test_d_does_not_compute_what_has_killed_one_worker_and_now_its_p() -> None:
    rig = fleet("d0", "d1")
    submit(rig, "r1")
    rig.started(peer=where(rig))
    rig.gone(where(rig))
    rig.core.tables.set_policy("", "always")
    rig.prefill("p0")
    submit(rig, "r1", 2)
    at = where(rig, "r1", 2)
    rig.take(Failed)
    rig.take(Abort)
    rig.gone("p0|1")
    assert [failed.attempt for failed in rig.take(Failed)] == [2]
    assert [abort.attempt for abort in rig.take(Abort, at)] == [2]
    submit(rig, "r1", 3)
    rig.receive(at, Ended(request_id="r1", attempt=2, error="cancelled"))
    assert rig.core.tables.attempts["r1", 3].trial


def test_the_tables_are_bounded() -> None:
    quarantine = PromptQuarantine(2)

    def dies(number: int, *, trial: bool) -> None:
        digest, worker = number.to_bytes(16), f"d{number}|1"
        quarantine.record_death(digest, "r", worker, Death(Role.DECODE, False, trial), 0.0)
        quarantine.check_invariants()

    for number in range(SUSPECTS_MAX + 10):
        dies(number, trial=False)
    for number in range(SUSPECTS_MAX + 10):
        dies(number, trial=True)
    for number in range(SUSPECTS_MAX + 10, 0, -1):
        for worker in range(2):
            quarantine.doubt(number.to_bytes(16), f"x{worker}|1", had_token=False)
        dies(number, trial=True)
    assert len(quarantine.verdicts(VERDICT_SECONDS)) > QUARANTINED_MAX
    quarantine.check_invariants()
    assert len(quarantine.rows(VERDICT_SECONDS)) == QUARANTINED_MAX


def test_workers_that_die_with_a_quarantined_prompt_change_nothing() -> None:
    """It ran on them when the verdict fell."""
    quarantine = PromptQuarantine(2)

    def dies(*workers: str) -> None:
        for worker in workers:
            quarantine.record_death(BAD, "r", worker, Death(Role.DECODE, False, trial=True), 0.0)
            quarantine.check_invariants()

    dies("d0|1", "d1|1", "d2|1")
    (row,) = quarantine.verdicts(VERDICT_SECONDS)
    dies("d3|1", "d4|1", "d5|1")
    assert quarantine.verdicts(2 * VERDICT_SECONDS) == []
    assert row.workers == ("d0|1", "d1|1", "d2|1")
