"""Each alarm of silent degradation: when it is raised, what it says, when it is over."""

from __future__ import annotations

from typing import Any

import pytest

from common.config import DegradationConfig
from common.messages import Beat, DecodeStarted, KvCounts, KvReport, Load, PairTrouble, Role
from services.ctl.verbs.status import render
from services.router.admin.verb import View
from services.router.admin.verbs.status import run
from services.router.degradation.detector import (
    BLAMED_MAX,
    SLOTS,
    Cause,
    DegradationDetector,
    Window,
)
from services.router.events import Note, PolicyChosen
from services.router.metrics.degradation import degradation_metrics
from services.router.rules import degradation_reports
from tests.rigs.messages import worker_hello
from tests.unit.services.router.rig import MOVED, Rig
from tests.unit.services.router.scraped import scraped

CONFIG = DegradationConfig()
WINDOW = CONFIG.window_ms / 1000
MISSED = KvReport()


def handoffs(
    degradation: DegradationDetector, now: float, of: int, bad: int, culprit: str = "p0"
) -> None:
    degradation.count(Cause.RECOMPUTED, now, of=of, bad=bad, culprit=culprit)


def test_a_share_of_handoffs_is_raised_at_its_limit_and_cleared_at_half_of_it() -> None:
    alarm = DegradationDetector(CONFIG)
    handoffs(alarm, 100.0, 40, 4)
    assert alarm.update_alarms(100.0) == [], "not more than the limit"
    handoffs(alarm, 101.0, 0, 1)
    (raised,) = alarm.update_alarms(101.0)
    assert raised.raised
    assert "5 of the last 40 handoffs were recomputed by decode" in raised.sentence
    assert "baton ctl pairs" in raised.sentence
    handoffs(alarm, 102.0, 30, 0)
    assert alarm.update_alarms(102.0) == [], "7 % is below the limit, and above half of it"
    assert Cause.RECOMPUTED in alarm.alarms
    handoffs(alarm, 103.0, 30, 0)
    (cleared,) = alarm.update_alarms(103.0)
    assert (cleared.raised, alarm.alarms) == (False, {})
    assert alarm.raised[Cause.RECOMPUTED] == 1


def test_few_handoffs_prove_nothing() -> None:
    alarm = DegradationDetector(CONFIG)
    handoffs(alarm, 100.0, CONFIG.handoffs_min - 1, CONFIG.handoffs_min - 1)
    assert alarm.update_alarms(100.0) == []
    handoffs(alarm, 100.0, 1, 0)
    assert [change.raised for change in alarm.update_alarms(100.0)] == [True]


def test_what_is_older_than_the_window_does_not_count() -> None:
    alarm = DegradationDetector(CONFIG)
    handoffs(alarm, 100.0, 40, 40)
    assert alarm.update_alarms(100.0 + WINDOW * 0.9)[0].raised
    assert [change.raised for change in alarm.update_alarms(100.0 + WINDOW * 1.1)] == [False]


@pytest.mark.parametrize(
    ("cause", "least"),
    [
        (Cause.BYTES, 1),
        (Cause.DIGEST, CONFIG.digest_mismatches),
        (Cause.LEASE, CONFIG.leases_expired),
    ],
)
def test_a_count_is_raised_at_its_limit_and_cleared_at_nothing(cause: Cause, least: int) -> None:
    alarm = DegradationDetector(CONFIG)
    alarm.count(cause, 100.0, of=least, bad=least, culprit="d7")
    (raised,) = alarm.update_alarms(100.0)
    assert (raised.cause, raised.raised) == (cause, True)
    assert "most by d7" in raised.sentence
    assert alarm.update_alarms(100.0 + WINDOW * 0.9) == []
    assert [change.raised for change in alarm.update_alarms(100.0 + WINDOW * 1.1)] == [False]


def test_a_higher_limit_of_a_count_is_kept() -> None:
    alarm = DegradationDetector(DegradationConfig(leases_expired=3))
    alarm.count(Cause.LEASE, 100.0, of=2, bad=2, culprit="p0")
    assert alarm.update_alarms(100.0) == []
    alarm.count(Cause.LEASE, 100.0, of=1, bad=1, culprit="p0")
    assert len(alarm.update_alarms(100.0)) == 1


def test_a_window_is_bounded_and_names_who_is_blamed_most() -> None:
    window = Window(WINDOW)
    for n in range(10 * SLOTS):
        for culprit in range(2 * BLAMED_MAX):
            window.add(n * WINDOW / SLOTS, 1, 1 + (culprit == 3), f"d{culprit}")
        window.check_invariants()
    assert window.worst() == "d3"
    assert window.of == SLOTS * 2 * BLAMED_MAX


# ------------------------------------------------------------------ through the core


def notes(actions: list[Any], event: str) -> list[Note]:
    return [action for action in actions if isinstance(action, Note) and action.event == event]


def serve(rig: Rig, n: int, kv: KvReport | None = MOVED, *, prefilled: bool = True) -> None:
    """A request from submission to its end."""
    name = f"r{n}"
    rig.submit(name)
    if prefilled:
        rig.prefilled(name)
    rig.started(name, kv=kv)
    rig.ended(name)


def test_prompts_that_decode_computes_instead_raise_an_alarm_and_it_is_cleared(rig: Rig) -> None:
    for n in range(40):
        serve(rig, n, MISSED if n % 4 == 0 else MOVED)
    (note,) = notes(rig.tick(), "degradation.raised")
    assert (note.level, note.fields["cause"]) == ("warning", "recomputed")
    assert "10 of the last 40 handoffs were recomputed by decode" in note.sentence
    assert "most by p0 and d0" in note.sentence
    cleared = notes(rig.tick(WINDOW * 1.1, alive=("p0|1", "d0|1", "g0|1")), "degradation.cleared")
    assert [note.fields["cause"] for note in cleared] == ["recomputed"]


def test_prompts_of_a_pair_in_quarantine_are_computed_by_decode_too(rig: Rig) -> None:
    damaged = KvReport(retries=1, refetches=1, digest_mismatches=2)
    rig.submit("r")
    trouble = PairTrouble(
        request_id="r", attempt=1, prefill="p0", prefill_incarnation="1", kind="digest"
    )
    rig.receive("d0|1", trouble)
    rig.started("r", kv=damaged)
    rig.ended("r")
    for n in range(19):
        rig.submit(f"r{n}")
        rig.started(f"r{n}", kv=None)
        rig.ended(f"r{n}")
    (note,) = notes(rig.tick(), "degradation.raised")
    assert "20 of the last 20 handoffs were recomputed" in note.sentence
    assert "most by d0 left alone" in note.sentence


def test_a_prompt_that_decode_had_in_its_cache_was_not_recomputed(rig: Rig) -> None:
    for n in range(40):
        rig.submit(f"r{n}", prompt=40)
        rig.prefilled(f"r{n}")
        had = DecodeStarted(request_id=f"r{n}", attempt=1, elapsed_ms=5.0, cached_tokens=32)
        rig.receive("d0|1", had)
        rig.ended(f"r{n}")
    assert not rig.tick()
    assert rig.core.tables.degradation.observed[Cause.RECOMPUTED] == 40


def test_a_handoff_that_is_not_as_heavy_as_its_blocks(rig: Rig) -> None:
    serve(rig, 1, MOVED)
    refetched = KvReport(
        blocks=3, complete=True, messages=2, payload_bytes=5120, raw_bytes=5120, retries=1
    )
    serve(rig, 2, refetched)
    packed = KvReport(
        blocks=3, complete=True, messages=1, payload_bytes=1536, raw_bytes=3072, compression="fp8"
    )
    serve(rig, 3, packed)
    assert not rig.tick()
    serve(rig, 4, KvReport(blocks=3, complete=True, messages=1, payload_bytes=3071))
    (note,) = notes(rig.tick(), "degradation.raised")
    assert note.fields["cause"] == "bytes"
    assert "1 handoffs were not as heavy as their blocks" in note.sentence
    serve(rig, 5, KvReport(blocks=3, complete=True, messages=1, payload_bytes=3073))
    assert rig.core.tables.degradation.failed[Cause.BYTES] == 2


@pytest.mark.parametrize(
    ("peer", "counts", "cause"),
    [
        ("d0|1", KvCounts(digest_mismatches=2), "digest"),
        ("p0|1", KvCounts(leases_expired=1), "lease"),
    ],
)
def test_what_a_worker_counts_is_an_alarm_by_how_much_it_grew(
    peer: str, counts: KvCounts, cause: str, rig: Rig
) -> None:
    rig.receive(peer, Beat(load=Load(), kv_counts=counts))
    (note,) = notes(rig.tick(), "degradation.raised")
    assert note.fields["cause"] == cause
    rig.receive(peer, Beat(load=Load(), kv_counts=counts))
    grown = counts.digest_mismatches + counts.leases_expired
    assert rig.core.tables.degradation.failed[Cause(cause)] == grown, "said twice, counted once"


def test_counts_of_a_time_before_this_router_are_no_alarm(rig: Rig) -> None:
    rig.receive("d9|1", worker_hello(Role.DECODE, "d9"))
    rig.receive("d9|1", Beat(load=Load(), kv_counts=KvCounts(digest_mismatches=5)))
    assert not notes(rig.tick(), "degradation.raised")
    rig.receive("d9|1", Beat(load=Load(), kv_counts=KvCounts(digest_mismatches=6)))
    (note,) = notes(rig.tick(), "degradation.raised")
    assert "1 KV messages did not match" in note.sentence


ALIVE = ("g0|1", "d0|1")


def without_prefill(rig: Rig, seconds: float, prompts: int) -> list[Any]:
    actions = []
    for n in range(prompts):
        rig.submit(f"r{n}")
        rig.started(f"r{n}", kv=None)
        rig.ended(f"r{n}")
        actions += rig.tick(seconds / prompts, alive=ALIVE)
    return actions


def test_no_prompt_reaches_prefill_and_then_one_does(rig: Rig) -> None:
    rig.gone("p0|1")
    actions = without_prefill(rig, 70.0, 25)
    first, note = notes(actions, "degradation.raised")
    assert (first.fields["cause"], note.fields["cause"]) == ("recomputed", "unreached")
    assert "prompts meant for it reached a prefill worker in 6" in note.sentence
    assert "baton ctl workers" in note.sentence
    rig.prefill(incarnation="2")
    rig.tick(3.0, alive=("p0|2", *ALIVE))
    rig.submit("again")
    rig.prefilled("again", peer="p0|2")
    assert [note.fields["cause"] for note in notes(rig.tick(), "degradation.cleared")] == [
        "unreached"
    ]


def test_a_prefill_worker_that_fails_every_prompt_is_not_reached(rig: Rig) -> None:
    for n in range(15):
        rig.submit(f"r{n}")
        rig.prefilled(f"r{n}", error="engine_failed")
        rig.started(f"r{n}", kv=MISSED)
        rig.ended(f"r{n}")
    (note, *_) = notes(rig.tick(70.0, alive=("p0|1", "d0|1", "g0|1")), "degradation.raised")[::-1]
    assert note.fields["cause"] == "unreached"


def test_too_few_prompts_or_prompts_that_stay_on_decode_are_no_alarm(rig: Rig) -> None:
    rig.gone("p0|1")
    actions = without_prefill(rig, 70.0, CONFIG.prompts_min - 1)
    for n in range(20):
        rig.submit(f"small{n}", prompt=16)
        rig.started(f"small{n}", kv=None)
        rig.ended(f"small{n}")
    assert not notes(actions + rig.tick(5.0, alive=ALIVE), "degradation.raised")


def test_a_prompt_that_the_governor_kept_on_decode_is_not_missed_elsewhere(rig: Rig) -> None:
    rig.submit()
    tables, attempt = rig.core.tables, rig.known()
    assert attempt.placement is not None
    local = attempt.placement._replace(prefill=None)
    before = tables.degradation.observed[Cause.UNREACHED]
    degradation_reports.record_placement(tables, attempt, local._replace(compared=True), rig.now)
    assert tables.degradation.observed[Cause.UNREACHED] == before
    degradation_reports.record_placement(tables, attempt, local, rig.now)
    assert tables.degradation.observed[Cause.UNREACHED] == before + 1


def test_who_wants_no_remote_prefill_is_not_told_that_there_is_none(rig: Rig) -> None:
    rig.gone("p0|1")
    without_prefill(rig, 70.0, 25)
    actions = rig.handle(PolicyChosen("", "never")) + rig.tick(alive=ALIVE)
    assert [note.fields["cause"] for note in notes(actions, "degradation.cleared")] == ["unreached"]


def test_a_fleet_without_prefill_workers_expects_none() -> None:
    rig = Rig()
    rig.gateway()
    rig.decode()
    assert not notes(without_prefill(rig, 70.0, 25), "degradation.raised")


def test_status_and_metrics_name_the_cause_and_the_fix(rig: Rig) -> None:
    for n in range(20):
        serve(rig, n, MISSED)
    rig.tick()
    told = run(View(rig.core.shared, rig.now, {}), {})
    (alarm,) = told.alarms
    assert alarm.cause == "recomputed"
    assert "20 of the last 20 handoffs were recomputed" in render(told)
    assert "ALARM recomputed" in render(told)
    lines = scraped(degradation_metrics({"m": rig.core.tables.degradation}, rig.now)).splitlines()
    for line in (
        'baton_router_degraded{cause="recomputed",model="m"} 1.0',
        'baton_router_degraded{cause="unreached",model="m"} 0.0',
        'baton_router_degradations_total{cause="recomputed",model="m"} 1.0',
        'baton_router_handoffs_total{model="m"} 20.0',
        'baton_router_handoffs_recomputed_total{model="m"} 20.0',
        'baton_router_prefill_unreached_seconds{model="m"} 0.0',
    ):
        assert line in lines
