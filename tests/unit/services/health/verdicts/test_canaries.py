"""What canaries say of the workers of a host."""

from __future__ import annotations

import pytest

from common.messages import CanaryAnswer
from services.health.verdicts.canaries import SKIPS_MAX, Canaries
from services.health.verdicts.host_verdict import HealthLevel

D0, D1, D2, P0 = ("decode", "d0"), ("decode", "d1"), ("decode", "d2"), ("prefill", "p0")
RIGHT, WRONG = (1, 2, 3), (1, 2, 4)
SILENT = CanaryAnswer(outcome="failed", fingerprint="f", sentence="no token within 5 s")
SKIPPED = CanaryAnswer(outcome="skipped", fingerprint="f", sentence="it is busy")


def said(
    tokens: tuple[int, ...] = RIGHT, *, fingerprint: str = "f", alone: bool = True
) -> CanaryAnswer:
    return CanaryAnswer(outcome="answered", fingerprint=fingerprint, tokens=tokens, alone=alone)


def bad(canaries: Canaries) -> dict[str, str]:
    """HealthLevel and sentence of all that is not well."""
    return {
        probe.name: f"{probe.verdict.name}: {probe.sentence}"
        for probe in canaries.probes()
        if probe.verdict is not HealthLevel.UP
    }


@pytest.fixture
def canaries() -> Canaries:
    return Canaries()


def test_a_worker_that_does_not_answer_is_degraded_then_down_then_well() -> None:
    canaries = Canaries()
    canaries.record_answer(D0, SILENT)
    assert bad(canaries) == {"canary:d0": "DEGRADED: canary on d0: no token within 5 s"}
    assert canaries.failing
    canaries.record_answer(D0, SILENT)
    assert bad(canaries) == {"canary:d0": "DOWN: canary on d0: no token within 5 s"}
    canaries.record_answer(D0, said())
    assert not bad(canaries)
    assert not canaries.failing


def test_a_worker_that_differs_from_the_others_is_degraded(canaries: Canaries) -> None:
    for worker, tokens in ((D0, WRONG), (D1, RIGHT), (P0, RIGHT)):
        canaries.record_answer(worker, said(tokens))
    assert bad(canaries) == {
        "canary_tokens:d0": "DEGRADED: canary tokens of d0 differ from d1's",
    }
    assert {probe.about for probe in canaries.probes()} == {D0, D1, P0}
    canaries.record_answer(D0, said(RIGHT))
    assert not bad(canaries)


def test_of_two_that_differ_the_one_that_changed_is_named(canaries: Canaries) -> None:
    canaries.record_answer(D0, said())
    canaries.record_answer(D1, said())
    assert not bad(canaries)
    canaries.record_answer(D1, said(WRONG))
    assert list(bad(canaries)) == ["canary_tokens:d1"]


def test_of_two_that_always_differed_both_are_named(canaries: Canaries) -> None:
    canaries.record_answer(D0, said())
    canaries.record_answer(D1, said(WRONG))
    assert bad(canaries) == {
        f"canary_tokens:{one}": f"DEGRADED: canary tokens of {one} differ from {other}'s; "
        "one of them computes wrongly"
        for one, other in (("d0", "d1"), ("d1", "d0"))
    }
    canaries.record_answer(D2, said())
    assert list(bad(canaries)) == ["canary_tokens:d1"]


def test_only_like_is_compared_with_like(canaries: Canaries) -> None:
    canaries.record_answer(D0, said())
    canaries.record_answer(D1, said(WRONG, fingerprint="g"))
    canaries.record_answer(D2, said(WRONG, alone=False))
    assert not bad(canaries)


def test_a_worker_alone_of_its_kind_is_believed(canaries: Canaries) -> None:
    canaries.record_answer(D0, said())
    canaries.record_answer(D0, said(WRONG))
    assert not bad(canaries)


def test_a_busy_worker_keeps_its_verdict_for_a_while_only(canaries: Canaries) -> None:
    canaries.record_answer(D0, SILENT)
    for _ in range(SKIPS_MAX - 1):
        canaries.record_answer(D0, SKIPPED)
        assert list(bad(canaries)) == ["canary:d0"]
    canaries.record_answer(D0, SKIPPED)
    assert not bad(canaries)


def test_who_left_is_forgotten_and_what_was_agreed_with_it(canaries: Canaries) -> None:
    canaries.record_answer(D0, said())
    canaries.record_answer(D1, SILENT)
    canaries.probes()
    canaries.retain([])
    assert not canaries.probes()
    canaries.record_answer(D0, said(WRONG))
    canaries.record_answer(D1, said(RIGHT))
    assert len(bad(canaries)) == 2, "nothing is left that would say who of the two is right"
