"""Admission through the core: which rule refuses, what it says, what it charges and gives back."""

from __future__ import annotations

from typing import Any

import pytest

from common.config import AdmissionConfig, LivenessConfig
from common.messages import (
    Abort,
    Decode,
    Ended,
    Failed,
    KeyLimits,
    Load,
    OtherCell,
    Placed,
    PrefillEnded,
    PriorityClass,
    Refused,
)
from services.router.admin.verb import View
from services.router.admin.verbs import status
from services.router.admission.predict import Prediction
from services.router.events import DrainStarted
from services.router.rules import admit
from tests.unit.services.router.rig import Rig, standard

INTERACTIVE, STANDARD, BATCH = PriorityClass
TRUSTING = LivenessConfig(proof_ms=0.0)


def submit(rig: Rig, request_id: str, **more: Any) -> None:
    rig.submit(request_id, **{"body": request_id.encode(), **more})


def refused(rig: Rig) -> Refused | None:
    """The one that was refused since the last look."""
    found = rig.take(Refused)
    assert len(found) <= 1
    return found[0] if found else None


def measured(rig: Rig, prompt: int = 400, seconds: float = 0.1, prompts: int = 10) -> None:
    """One prompt after the other, so that the prefill rate is known; nothing is left."""
    for i in range(prompts):
        submit(rig, f"m{i}", prompt_tokens=prompt)
        rig.now += seconds
        elapsed = seconds * 1000
        rig.receive("p0|1", PrefillEnded(request_id=f"m{i}", attempt=1, elapsed_ms=elapsed))
        rig.started(f"m{i}")
        rig.ended(f"m{i}")
    rig.sent.clear()
    assert rig.nothing_held()


# ------------------------------------------------------------ the prediction


def test_a_prompt_that_cannot_meet_the_slo_even_alone_is_refused_with_its_terms() -> None:
    rig = standard(ttft_slo_ms=200.0)
    measured(rig, prompt=400, seconds=0.1)
    submit(rig, "long", prompt_tokens=900)
    answer = refused(rig)
    assert answer is not None
    assert answer.code == "overloaded"
    assert "225 to compute the prompt" in answer.message
    assert "170 ms are allowed" in answer.message
    assert answer.retry_after_ms >= 1000


def test_admission_stops_where_the_prediction_passes_the_slo() -> None:
    rig = standard(ttft_slo_ms=1000.0)
    measured(rig, prompt=400, seconds=0.1)
    admitted = 0
    while True:
        submit(rig, f"r{admitted}", prompt_tokens=400)
        answer = refused(rig)
        if answer is not None:
            break
        admitted += 1
    assert answer.code == "overloaded"
    assert admitted == 8


def test_the_sooner_of_slo_and_deadline_counts() -> None:
    rig = standard(ttft_slo_ms=1000.0)
    measured(rig, prompt=400, seconds=0.1)
    submit(rig, "hasty", prompt_tokens=400, deadline_ms=90.0)
    assert refused(rig) is not None
    submit(rig, "calm", prompt_tokens=400, deadline_ms=90_000.0)
    assert refused(rig) is None


def test_without_slo_and_deadline_everything_may_wait() -> None:
    rig = standard(max_active=1)
    measured(rig)
    for i in range(50):
        submit(rig, f"r{i}", prompt_tokens=400)
    assert refused(rig) is None


def test_batch_has_only_its_own_deadline() -> None:
    rig = standard(ttft_slo_ms=50.0)
    measured(rig)
    submit(rig, "batch", prompt_tokens=400, priority=BATCH)
    assert refused(rig) is None
    submit(rig, "hasty", prompt_tokens=400, priority=BATCH, deadline_ms=50.0)
    assert refused(rig) is not None


def test_what_is_not_measured_refuses_nobody_from_an_idle_fleet() -> None:
    rig = standard(ttft_slo_ms=20.0)
    submit(rig, "first", prompt_tokens=900)
    assert refused(rig) is None
    submit(rig, "second", prompt_tokens=900)
    assert refused(rig) is not None


def test_an_estimate_that_is_stale_is_tried_again() -> None:
    """Or one bad measurement would close the door for ever."""
    rig = standard(ttft_slo_ms=100.0)
    measured(rig, prompt=400, seconds=0.5)
    submit(rig, "now", prompt_tokens=400)
    assert refused(rig) is not None
    rig.tick(AdmissionConfig().probe_ms / 1000 + 0.5, alive=("g0|1", "p0|1", "d0|1"))
    submit(rig, "probe", prompt_tokens=400)
    assert refused(rig) is None


def test_decode_slots_that_are_free_too_late_refuse() -> None:
    rig = standard(ttft_slo_ms=1000.0, max_active=2)
    for i in range(20):
        submit(rig, f"m{i}", prompt_tokens=8)
        rig.now += 4.0
        rig.started(f"m{i}", kv=None)
        rig.ended(f"m{i}")
    rig.sent.clear()
    submit(rig, "a")
    submit(rig, "b")
    submit(rig, "c")
    answer = refused(rig)
    assert answer is not None
    assert "2000 until a decode worker is" in answer.message


def test_what_became_too_late_in_the_queue_is_refused_at_dequeue() -> None:
    rig = standard(ttft_slo_ms=2000.0, max_active=1)
    measured(rig, prompt=400, seconds=0.1)
    submit(rig, "runs")
    submit(rig, "waits")
    assert rig.state("waits") == "queued"
    rig.now += 2.5
    rig.ended("runs")
    answer = refused(rig)
    assert answer is not None
    assert (answer.request_id, answer.code) == ("waits", "overloaded")
    assert "TTFT SLO cannot be met any more after 2500 ms" in answer.message


# ------------------------------------------------------------ gates


def test_prompts_that_decode_does_not_start_close_the_gate(rig: Rig) -> None:
    for i in range(5):
        submit(rig, f"r{i}")
        rig.prefilled(f"r{i}")
    rig.tick(0.4, alive=("g0|1", "p0|1", "d0|1"))
    submit(rig, "in time")
    assert refused(rig) is None
    rig.tick(1.0, alive=("g0|1", "p0|1", "d0|1"))
    submit(rig, "late")
    answer = refused(rig)
    assert answer is not None
    assert "5 computed prompts wait for 1 decode workers" in answer.message
    for i in range(5):
        rig.started(f"r{i}")
    rig.tick(0.2, alive=("g0|1", "p0|1", "d0|1"))
    submit(rig, "open again")
    assert refused(rig) is None


def test_kv_in_use_beyond_the_limit_closes_the_gate(rig: Rig) -> None:
    rig.beat("d0|1", Load(running=9, kv_used=0.97))
    rig.tick(0.2)
    submit(rig, "r1")
    answer = refused(rig)
    assert answer is not None
    assert "97% of the decode workers' KV is in use" in answer.message


def test_batch_yields_to_others_while_kv_is_short(rig: Rig) -> None:
    rig.beat("d0|1", Load(running=9, kv_used=0.9))
    rig.tick(0.2)
    submit(rig, "b1", priority=BATCH)
    assert refused(rig) is None
    submit(rig, "i1", priority=INTERACTIVE)
    submit(rig, "b2", priority=BATCH)
    answer = refused(rig)
    assert answer is not None
    assert answer.request_id == "b2"


def kv_short(used: float) -> Rig:
    """Two of batch on D, one of them streaming, no slot left, an interactive one waits."""
    rig = standard(max_active=2)
    submit(rig, "b1", priority=BATCH)
    submit(rig, "b2", priority=BATCH)
    rig.started("b1")
    submit(rig, "i1", priority=INTERACTIVE)
    rig.sent.clear()
    rig.beat("d0|1", Load(running=2, kv_used=used))
    rig.tick(0.2, alive=("g0|1", "p0|1"))
    return rig


@pytest.mark.parametrize("resumable", [True, False])
def test_what_streams_gives_way_only_if_it_can_go_on(*, resumable: bool) -> None:
    rig = standard(max_active=1)
    submit(rig, "b1", priority=BATCH, resumable=resumable)
    rig.started("b1")
    submit(rig, "i1", priority=INTERACTIVE)
    rig.sent.clear()
    rig.beat("d0|1", Load(running=1, kv_used=0.9))
    rig.tick(0.2, alive=("g0|1", "p0|1"))
    assert [failed.code for failed in rig.take(Failed)] == (["preempted"] if resumable else [])


def test_under_kv_pressure_the_newest_of_the_lowest_class_gives_way() -> None:
    rig = kv_short(0.9)
    (failed,) = rig.take(Failed)
    assert (failed.request_id, failed.code) == ("b2", "preempted")
    assert "goes on later" in failed.message
    assert {s.peer for s in rig.sent if isinstance(s.message, Abort)} == {"d0|1", "p0|1"}
    assert rig.state("b1") == "decoding"
    rig.ended("b2", error="cancelled")
    assert rig.state("i1") == "placed"


def test_without_pressure_nobody_gives_way() -> None:
    rig = kv_short(0.8)
    assert not rig.take(Failed)
    assert rig.state("b2") == "placed"


def test_a_fleet_that_lost_half_its_decode_admits_in_proportion_once_work_waits() -> None:
    rig = standard(max_active=1)
    rig.decode("d1")
    rig.gone("d1|1")
    rig.tick(0.2, alive=("g0|1", "p0|1", "d0|1"))
    submit(rig, "runs")
    submit(rig, "waits")
    assert refused(rig) is None
    answers = []
    for i in range(80):
        submit(rig, f"r{i}")
        answers.append(refused(rig))
    thinned = [a for a in answers if a is not None]
    assert len(thinned) == pytest.approx(80 * (1 - 0.5 / 0.8) - 8, abs=3)
    assert all(a.code == "overloaded" and a.retry_after_ms >= 1000 for a in thinned)


# ------------------------------------------------------------ keys


LIMITED = KeyLimits(tokens_per_min=6000, requests_per_min=600, concurrency=3)


def test_a_key_over_its_rate_hears_429_and_when_to_come_back(rig: Rig) -> None:
    limits = KeyLimits(requests_per_min=2)
    for i in range(3):
        submit(rig, f"r{i}", key_id="k", limits=limits)
    answer = refused(rig)
    assert answer is not None
    assert (answer.code, answer.request_id) == ("rate_limited", "r2")
    assert 30_000 <= answer.retry_after_ms <= 36_000


def test_cost_is_charged_at_admission_and_settled_at_the_end(rig: Rig) -> None:
    submit(rig, "r1", key_id="k", limits=LIMITED, prompt_tokens=400, max_tokens=400)
    assert rig.core.tables.admission.keys.rows(1)[0]["cost_left"] == 6000 - 400 - 800
    rig.receive("p0|1", PrefillEnded(request_id="r1", attempt=1, elapsed_ms=1.0, cached_tokens=300))
    rig.started("r1")
    rig.receive(
        "d0|1", Ended(request_id="r1", attempt=1, finish_reason="stop", completion_tokens=50)
    )
    assert rig.core.tables.admission.keys.rows(1)[0]["cost_left"] == 6000 - 100 - 100


@pytest.mark.parametrize("how", ["cancel", "refuse"])
def test_what_never_ran_is_given_back(how: str) -> None:
    rig = standard(max_active=1)
    submit(rig, "runs")
    submit(rig, "waits", key_id="k", limits=LIMITED, deadline_ms=900.0, prompt_tokens=8)
    assert rig.core.tables.admission.keys.rows(1)[0]["live"] == 1
    if how == "cancel":
        rig.cancel("waits")
    else:
        rig.tick(1.0, alive=("g0|1", "p0|1", "d0|1"))
    assert rig.core.tables.admission.keys.rows(1)[0] == {
        "key_id": "k",
        "live": 0,
        "requests_left": 599.0,
        "cost_left": 6000.0,
    }


def test_concurrency_is_freed_by_each_end(rig: Rig) -> None:
    limits = KeyLimits(concurrency=2)
    for i in range(3):
        submit(rig, f"r{i}", key_id="k", limits=limits)
    answer = refused(rig)
    assert answer is not None
    assert answer.code == "rate_limited"
    rig.ended("r0", error="engine_failed")
    submit(rig, "r3", key_id="k", limits=limits)
    assert refused(rig) is None


def test_a_refusal_by_another_rule_is_not_charged() -> None:
    rig = standard(max_active=1, max_queue=1)
    for i in range(5):
        submit(rig, f"r{i}", key_id="k", limits=LIMITED, prompt_tokens=8)
    assert rig.core.tables.admission.keys.rows(1)[0]["requests_left"] == 598.0


# ------------------------------------------------------------ retries, queue, answers


def test_later_attempts_are_kept_to_a_share() -> None:
    rig = standard(admission=AdmissionConfig(retry_burst=3))
    for i in range(9):
        submit(rig, f"r{i}", attempt=2)
        rig.ended(f"r{i}", 2)
    rig.tick(0.2, alive=("g0|1", "p0|1", "d0|1"))
    rig.sent.clear()
    for i in range(9, 20):
        submit(rig, f"r{i}", attempt=2)
    codes = [answer.code for answer in rig.take(Refused)]
    assert "retry_budget" in codes
    assert rig.core.tables.counts.placed <= 9 + 3


def test_a_later_attempt_is_not_refused_for_being_slow() -> None:
    """It was admitted once; its client already waits."""
    rig = standard(ttft_slo_ms=50.0)
    measured(rig)
    submit(rig, "moved", attempt=2, prompt_tokens=900)
    assert refused(rig) is None


def test_the_queue_serves_tenants_by_weight() -> None:
    rig = standard(max_active=1)
    submit(rig, "runs", prompt_tokens=8)
    for i in range(20):
        submit(rig, f"h{i}", tenant="heavy", limits=KeyLimits(weight=4.0), prompt_tokens=8)
        submit(rig, f"l{i}", tenant="light", prompt_tokens=8)
    rig.ended("runs")
    rig.take(Placed)
    for _ in range(15):
        (running,) = [e for e in rig.core.tables.attempts.values() if e.state.value == "placed"]
        rig.ended(running.request_id)
    served = [placed.request_id[0] for placed in rig.take(Placed)]
    assert served.count("h") == pytest.approx(12, abs=1)
    assert served.count("l") == pytest.approx(3, abs=1)


def test_a_tenant_pays_for_what_it_really_got() -> None:
    """Both are predicted alike; one's answers are short, so it is served more often."""
    rig = standard(max_active=1)
    submit(rig, "runs", prompt_tokens=8)
    for i in range(20):
        submit(rig, f"short{i}", tenant="short", prompt_tokens=8, max_tokens=200)
        submit(rig, f"full{i}", tenant="full", prompt_tokens=8, max_tokens=200)
    rig.ended("runs")
    rig.take(Placed)
    for _ in range(15):
        (running,) = [e for e in rig.core.tables.attempts.values() if e.state.value == "placed"]
        made = 10 if running.tenant == "short" else 200
        name = running.request_id
        rig.receive(
            "d0|1",
            Ended(request_id=name, attempt=1, finish_reason="stop", completion_tokens=made),
        )
    served = [placed.request_id for placed in rig.take(Placed)]
    assert sum(name.startswith("short") for name in served) >= 12


def booked() -> Rig:
    """Twenty were told to come now, a tenth of a second of work each; nobody else is there."""
    rig = standard(ttft_slo_ms=1000.0)
    measured(rig, prompt=400, seconds=0.1)
    for i in range(20):
        submit(rig, f"r{i}", prompt_tokens=400)
    rig.take(Refused)
    for i in range(20):
        submit(rig, f"told{i}", prompt_tokens=400)
    waits = [answer.retry_after_ms for answer in rig.take(Refused)]
    for attempt in list(rig.core.tables.attempts.values()):
        rig.cancel(attempt.request_id)
        rig.ended(attempt.request_id, error="cancelled")
    rig.sent.clear()
    rig.now += min(waits) / 1000
    return rig


def test_status_says_how_many_were_told_to_come_back_and_what_share_does() -> None:
    rig = booked()
    shown = status.run(View(rig.core.shared, rig.now, {}), {})
    assert shown.retry_reservations == len(rig.core.tables.admission.reservations) > 0
    submit(rig, "comes-as-told", prompt_tokens=400, body=b"told0")
    after = status.run(View(rig.core.shared, rig.now, {}), {})
    assert after.retry_reservations == shown.retry_reservations - 1
    rig.now += 5.0
    submit(rig, "newcomer", prompt_tokens=400)
    over = status.run(View(rig.core.shared, rig.now, {}), {})
    assert over.retry_redeemed_share < shown.retry_redeemed_share, "one of twenty came"


def test_a_newcomer_is_judged_as_if_those_with_reservations_were_ahead() -> None:
    rig = booked()
    submit(rig, "runs", prompt_tokens=400)
    submit(rig, "newcomer", prompt_tokens=400)
    assert refused(rig) is not None
    submit(rig, "comes-as-told", prompt_tokens=400, body=b"told0")
    assert refused(rig) is None


def test_no_worker_stands_idle_for_who_may_come() -> None:
    rig = booked()
    submit(rig, "newcomer", prompt_tokens=400)
    assert refused(rig) is None
    submit(rig, "comes-as-told", prompt_tokens=400, body=b"told0")
    assert refused(rig) is None


def test_every_refusal_that_may_pass_later_says_when() -> None:
    rig = standard(max_active=1, max_queue=1, ttft_slo_ms=10_000.0)
    limits = KeyLimits(concurrency=1)
    submit(rig, "runs", key_id="k", limits=limits)
    submit(rig, "limited", key_id="k", limits=limits)
    submit(rig, "waits")
    submit(rig, "full")
    rig.handle(DrainStarted())
    submit(rig, "stopping")
    answers = rig.take(Refused)
    assert [a.code for a in answers] == ["rate_limited", "queue_full", "draining"]
    assert all(1000 <= a.retry_after_ms <= 72_000 for a in answers)


def test_who_comes_back_when_told_finds_the_room_kept() -> None:
    """The queue is full of others again, up to the place that was promised."""
    rig = standard(max_active=1, max_queue=3)
    for i in range(4):
        submit(rig, f"r{i}", body=b"others")
    submit(rig, "obeys", body=b"mine")
    answer = refused(rig)
    assert answer is not None
    rig.now += answer.retry_after_ms / 1000
    rig.ended("r0")
    submit(rig, "newcomer")
    refusal = refused(rig)
    assert refusal is not None
    assert refusal.code == "queue_full"
    submit(rig, "obeys-again", body=b"mine")
    assert refused(rig) is None


def test_a_later_attempt_is_tried_again_soon_and_reserves_nothing() -> None:
    """It uses room that is kept for others anyway, and its gateway gives it up after a while."""
    rig = standard(max_active=1, max_queue=3)
    for i in range(4):
        submit(rig, f"r{i}", body=b"others")
    rig.now += 20.0
    submit(rig, "moved", attempt=2)
    answer = refused(rig)
    assert answer is not None
    assert answer.code == "queue_full"
    assert 1_000 <= answer.retry_after_ms <= 1_200
    assert not len(rig.core.tables.admission.reservations)


@pytest.mark.parametrize("restarted", [False, True])
def test_a_worker_that_came_back_among_others_is_filled_slowly(*, restarted: bool) -> None:
    rig = standard(liveness=TRUSTING)
    rig.decode("d1")
    alive = ("g0|1", "p0|1", "d0|1", "d1|2" if restarted else "d1|1")
    rig.gone("d1|1")
    if restarted:
        rig.decode("d1", "2")
    rig.beat(alive[-1], Load())
    rig.now += 0.0 if restarted else 1.0
    for peer in alive:
        rig.beat(peer, Load())
    row = rig.row(alive[-1])
    given = [row.slots]
    for _ in range(6):
        rig.tick(2.0, alive=alive)
        given.append(row.slots)
    assert given[0] == 2
    assert given == sorted(given)
    assert given[1:3] == [4, 5]
    assert given[-1] == 8
    assert row.ramp_from is None


def test_a_ramp_is_what_placement_sees() -> None:
    rig = standard(liveness=TRUSTING)
    rig.decode("d1")
    rig.gone("d1|1")
    rig.beat("d1|1", Load())
    rig.now += 1.0
    rig.beat("d1|1", Load())
    for i in range(20):
        submit(rig, f"r{i}", prompt_tokens=8)
    assert [send.peer for send in rig.sent if isinstance(send.message, Decode)].count("d1|1") == 2


def test_the_only_worker_gets_all_its_slots_back_at_once(rig: Rig) -> None:
    rig.gone("d0|1")
    rig.beat("d0|1", Load())
    rig.now += 1.0
    rig.beat("d0|1", Load())
    rig.tick(0.2)
    assert rig.row("d0|1").slots == 8


def test_a_later_attempt_is_charged_to_its_key() -> None:
    rig = standard()
    rig.decode("d1")
    limits = KeyLimits(concurrency=1)
    for attempt in (1, 2):
        submit(rig, "r", attempt=attempt, key_id="k", limits=limits)
        assert rig.core.tables.admission.charged == {("r", attempt)}
        submit(rig, f"x{attempt}", key_id="k", limits=limits)
        answer = refused(rig)
        assert answer is not None
        assert answer.code == "rate_limited"
        rig.gone(rig.core.tables.attempts["r", attempt].decode)
    assert rig.core.tables.admission.charged == set()


def test_a_request_must_start_before_its_prefill_and_its_transfer_no_longer_fit(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    terms = Prediction(prefill_wait=0.0, decode_wait=0.0, prefill=0.2, transfer=0.3)
    monkeypatch.setattr(admit, "predicted", lambda *_: terms)
    rig = Rig(ttft_slo_ms=1_000.0)
    rig.gateway()
    submit(rig, "r")
    assert rig.core.tables.attempts["r", 1].start_by == pytest.approx(rig.now + 1.0 - 0.5)


def admitted(limits: KeyLimits, other: OtherCell | None, asked: int = 100) -> tuple[int, str]:
    """How many of the requests of a key are admitted at once, and what the last one hears."""
    rig = Rig()
    rig.gateway()
    rig.decode("d0", seqs=256)
    for i in range(asked):
        submit(rig, f"r{i}", key_id="k", limits=limits, other_cell=other)
    denied = rig.take(Refused)
    assert {refused.code for refused in denied} == {"rate_limited"}
    return asked - len(denied), denied[-1].message


@pytest.mark.parametrize(
    ("other", "expected"),
    [
        (None, 80),
        (OtherCell(live=3), 80),
        (OtherCell(serves=True), 4),
        (OtherCell(left_ms=0.0), 4),
        (OtherCell(left_ms=30_000.0), 44),
        (OtherCell(left_ms=60_000.0), 80),
    ],
)
def test_what_a_key_has_saved_up_where_another_cell_serves_it_too(
    other: OtherCell | None, expected: int
) -> None:
    found, sentence = admitted(KeyLimits(requests_per_min=80), other)
    assert found == expected
    assert ("finds 5% of its limits" in sentence) == (other == OtherCell(serves=True))


@pytest.mark.parametrize(
    ("other", "expected"),
    [
        (None, 40),
        (OtherCell(live=15, left_ms=0.0), 25),
        (OtherCell(live=50), 0),
        (OtherCell(serves=True), 2),
        (OtherCell(serves=True, live=39), 1),
        (OtherCell(serves=True, live=40), 0),
    ],
)
def test_what_a_key_runs_in_another_cell_counts(other: OtherCell | None, expected: int) -> None:
    assert admitted(KeyLimits(concurrency=40), other)[0] == expected
