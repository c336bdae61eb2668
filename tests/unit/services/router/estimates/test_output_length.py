"""Output length p90 by class, with its fallbacks."""

import pytest

from services.router.estimates import output_length
from services.router.estimates.output_length import TRUST_SAMPLES, OutputLength


def test_the_prior_is_bounded_by_what_was_asked() -> None:
    lengths = OutputLength(512)
    assert lengths.predict("t", 1, 100) == 100
    assert lengths.predict("t", 1, 4000) == 512


def test_the_p90_of_a_class_answers_once_it_has_samples() -> None:
    lengths = OutputLength(512)
    for i in range(TRUST_SAMPLES - 1):
        lengths.ended("t", 1, 1000, i)
    assert lengths.predict("t", 1, 1000) == 512
    for i in range(60):
        lengths.ended("t", 1, 1000, i)
    assert 52 <= lengths.predict("t", 1, 1000) <= 56
    assert lengths.predict("t", 1, 600) == lengths.predict("t", 1, 1000)


def test_a_new_tenant_is_judged_by_all_and_then_by_itself() -> None:
    lengths = OutputLength(512)
    for _ in range(20):
        lengths.ended("old", 1, 1000, 10)
    assert lengths.predict("new", 1, 1000) == 10
    for _ in range(TRUST_SAMPLES):
        lengths.ended("new", 1, 1000, 200)
    assert lengths.predict("new", 1, 1000) == 200
    assert lengths.predict("old", 1, 1000) == 10
    assert lengths.predict("old", 2, 1000) == 512


def test_classes_are_bounded_and_the_latest_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(output_length, "CLASSES_MAX", 4)
    lengths = OutputLength(512)
    for i in range(50):
        for _ in range(TRUST_SAMPLES):
            lengths.ended(f"t{i}", 1, 1000, i)
    assert len(lengths._classes) == 4
    assert lengths.predict("t49", 1, 1000) == 49
