"""What a host's health daemon thinks of a worker: who then gets work, and who still does."""

from __future__ import annotations

from typing import Any

import pytest

from common.messages import Beat, Decode, HealthVerdict, Load, Prefill, Role
from services.router.events import Note
from tests.unit.services.router.admin.verbs.test_explain import ask
from tests.unit.services.router.rig import Rig, standard

DEGRADED = HealthVerdict(reason="canary tokens of d0 differ from d1's")
DOWN = HealthVerdict(reason="canary on d0: no token within 5 s", down=True)


def judged(rig: Rig, peer: str, verdict: HealthVerdict | None) -> list[Note]:
    """It beats; what was noted."""
    actions = rig.receive(peer, Beat(load=Load(), health_verdict=verdict))
    return [a for a in actions if isinstance(a, Note) and a.event == "worker.judged"]


def with_decodes(count: int, **settings: Any) -> Rig:
    rig = standard(policy="round_robin", **settings)
    for number in range(1, count):
        joins(rig, Role.DECODE, f"d{number}")
    return rig


def joins(rig: Rig, role: Role, name: str, seqs: int = 8) -> None:
    """With an empty engine."""
    rig.beat(rig.worker(role, name, seqs=seqs), Load())
    rig.sent.clear()


def row(rig: Rig, name: str) -> dict[str, Any]:
    found: dict[str, Any] = next(row for row in ask(rig, "workers") if row["name"] == name)
    return found


@pytest.mark.parametrize("verdict", [DEGRADED, DOWN])
def test_work_goes_to_those_that_nobody_has_anything_against(verdict: HealthVerdict) -> None:
    rig = with_decodes(3)
    judged(rig, "d0|1", verdict)
    for number in range(6):
        rig.submit(f"r{number}")
    assert not rig.take(Decode, "d0|1")
    assert len(rig.take(Decode, "d1|1")) == len(rig.take(Decode, "d2|1")) == 3


def test_a_degraded_worker_gets_what_no_other_can_take(rig: Rig) -> None:
    joins(rig, Role.DECODE, "d1", seqs=2)
    judged(rig, "d0|1", DEGRADED)
    rig.sent.clear()
    for number in range(4):
        rig.submit(f"r{number}")
    assert len(rig.take(Decode, "d1|1")) == 2
    assert len(rig.take(Decode, "d0|1")) == 2


def test_one_that_is_down_gets_nothing_new_and_keeps_what_it_has(rig: Rig) -> None:
    rig.submit("r0")
    joins(rig, Role.DECODE, "d1", seqs=1)
    judged(rig, "d0|1", DOWN)
    rig.submit("r1")
    rig.submit("r2")
    assert [rig.state(f"r{number}") for number in range(3)] == ["placed", "placed", "queued"]
    assert (row(rig, "d0")["state"], row(rig, "d0")["requests"]) == ("down", 1)
    judged(rig, "d0|1", None)
    assert rig.state("r2") == "placed"
    assert row(rig, "d0")["state"] == "ready"


def test_the_last_ready_worker_is_never_shut_out(rig: Rig) -> None:
    judged(rig, "d0|1", DOWN)
    rig.submit("r0")
    assert rig.state("r0") == "placed"
    rig.decode("d1")
    judged(rig, "d0|1", DOWN)
    assert rig.row("d0|1").excluded
    rig.gone("d1|1")
    judged(rig, "d0|1", DOWN)
    rig.submit("r1")
    assert rig.state("r1") == "placed"


def test_no_more_of_a_pool_are_shut_out_than_may_be_ejected() -> None:
    rig = with_decodes(6)
    for number in range(6):
        judged(rig, f"d{number}|1", DOWN)
    assert [rig.row(f"d{number}|1").excluded for number in range(6)] == [True, True, *[False] * 4]


def test_ejected_ones_count_among_those_that_are_out() -> None:
    rig = with_decodes(3)
    hung = Load(running=1, step_age_ms=60_000)
    rig.beat("d1|1", hung)
    rig.beat("d1|1", hung)
    assert rig.row("d1|1").state.value == "ejected"
    judged(rig, "d0|1", DOWN)
    assert not rig.row("d0|1").excluded


def test_an_unhealthy_prefill_worker_is_passed_over_while_another_has_room(rig: Rig) -> None:
    joins(rig, Role.PREFILL, "p1")
    judged(rig, "p0|1", DEGRADED)
    rig.sent.clear()
    for number in range(3):
        rig.submit(f"r{number}")
    assert not rig.take(Prefill, "p0|1")
    assert len(rig.take(Prefill, "p1|1")) == 3


def test_a_sound_decode_worker_is_kept_though_only_an_unhealthy_prefill_worker_has_room() -> None:
    rig = standard(policy="round_robin")
    joins(rig, Role.DECODE, "d1")
    joins(rig, Role.PREFILL, "p1", seqs=1)
    judged(rig, "d0|1", DEGRADED)
    judged(rig, "p0|1", DEGRADED)
    rig.sent.clear()
    rig.submit("r0")
    rig.submit("r1")
    assert [len(rig.take(Prefill, peer)) for peer in ("p1|1", "p0|1")] == [1, 1]
    assert len(rig.take(Decode, "d1|1")) == 2


def test_it_is_told_once_and_shown() -> None:
    rig = with_decodes(2)
    (note,) = judged(rig, "d0|1", DEGRADED)
    assert note.level == "warning"
    assert note.sentence == (
        "decode d0 gets only what no other can take, says its host's health daemon: "
        + DEGRADED.reason
    )
    assert not judged(rig, "d0|1", DEGRADED)
    assert (row(rig, "d0")["verdict"], row(rig, "d0")["verdict_reason"]) == (
        "degraded",
        DEGRADED.reason,
    )
    assert ask(rig, "status")["workers_doubted"] == 1
    (note,) = judged(rig, "d0|1", DOWN)
    assert "gets nothing new" in note.sentence
    (note,) = judged(rig, "d0|1", None)
    assert note.sentence == "decode d0 is well again, says its host's health daemon"
    assert not judged(rig, "d0|1", None)
    assert row(rig, "d0")["verdict"] == ""


def test_a_newcomer_and_one_that_returns_bring_their_verdict_along(rig: Rig) -> None:
    rig.decode("d1")
    rig.receive("d1|1", Beat(load=Load(), health_verdict=DOWN))
    rig.gone("d1|1")
    assert ask(rig, "status")["workers_doubted"] == 0
    rig.worker(Role.DECODE, "d1", "2")
    assert not rig.row("d1|2").excluded
    rig.receive("d1|2", Beat(load=Load(), health_verdict=DOWN))
    assert rig.row("d1|2").excluded


def test_what_is_shut_out_is_capacity_that_is_missed() -> None:
    rig = with_decodes(2)
    rig.tick()
    assert rig.core.tables.admission.capacity == 1.0
    judged(rig, "d0|1", DOWN)
    rig.tick()
    assert rig.core.tables.admission.capacity == 0.5
    judged(rig, "d0|1", DEGRADED)
    rig.tick()
    assert rig.core.tables.admission.capacity == 1.0
