"""An engine with work and no steps is hung; a slow one and one that waits for KV are not."""

from __future__ import annotations

import pytest

from common.messages import Load
from common.worker.engine_watch import why_hung

HANG_MS, LOAD_TIMEOUT_MS = 5_000.0, 20_000.0


@pytest.mark.parametrize(
    ("load", "hung"),
    [
        (Load(running=2, step_age_ms=5_001), True),
        (Load(running=2, step_age_ms=4_999), False),
        (Load(running=2, step_age_ms=9_000, step_ms_p99=500), False),
        (Load(running=2, step_age_ms=10_001, step_ms_p99=500), True),
        (Load(waiting=1, step_age_ms=24_999), False),
        (Load(waiting=1, step_age_ms=25_001), True),
        (Load(), False),
        (Load(silent_ms=4_999), False),
        (Load(silent_ms=5_001), True),
        (Load(waiting=1, silent_ms=5_001, step_age_ms=5_001), True),
        (Load(silent_ms=9_000, step_ms_p99=500), False),
    ],
)
def test_when_an_engine_counts_as_hung(load: Load, hung: bool) -> None:
    assert bool(why_hung(load, HANG_MS, LOAD_TIMEOUT_MS, ran=False)) is hung


def test_it_says_what_it_saw_in_one_line() -> None:
    sentence = why_hung(
        Load(running=2, waiting=1, step_age_ms=6_000), HANG_MS, LOAD_TIMEOUT_MS, ran=True
    )
    assert sentence == ("the engine has work (2 running, 1 waiting) and made no step for 6.0 s")


def test_it_says_that_it_asked() -> None:
    sentence = why_hung(Load(silent_ms=6_000), HANG_MS, LOAD_TIMEOUT_MS, ran=False)
    assert sentence == "the engine has 0 requests and did not answer a question for 6.0 s"


def test_what_ran_and_was_taken_elsewhere_since_counts() -> None:
    load = Load(step_age_ms=5_001)
    assert why_hung(load, HANG_MS, LOAD_TIMEOUT_MS, ran=True)
    assert not why_hung(load, HANG_MS, LOAD_TIMEOUT_MS, ran=False)
