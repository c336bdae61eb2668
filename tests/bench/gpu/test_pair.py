"""The processes of a part end, however the part does."""

from __future__ import annotations

import time

from tests.bench.gpu.pair import CPU, Part, run
from tests.rigs.gpu_parts import (
    DOUBLED,
    LIMIT_S,
    far_dies,
    far_doubles,
    near_asks,
    near_raises,
    near_waits,
)


def test_a_part_reports_what_both_processes_found() -> None:
    outcome = run(Part("sums", near_asks, far_doubles, LIMIT_S), CPU, (), LIMIT_S)
    assert (outcome.failure, outcome.rows) == ("", [DOUBLED])
    assert "torch" in outcome.about


def test_what_a_part_found_before_it_failed_is_kept() -> None:
    outcome = run(Part("sums", near_raises, None, LIMIT_S), CPU, (), LIMIT_S)
    assert (outcome.failure, outcome.rows) == ("RuntimeError: the card is gone", [DOUBLED])


def test_a_part_ends_at_its_limit() -> None:
    start = time.monotonic()
    outcome = run(Part("sums", near_waits, None, 1.0), CPU, (), LIMIT_S)
    assert outcome.failure == "it did not end within 1 s"
    assert time.monotonic() - start < LIMIT_S / 2


def test_a_process_that_dies_ends_the_part() -> None:
    outcome = run(Part("sums", near_waits, far_dies, LIMIT_S), CPU, (), LIMIT_S)
    assert outcome.failure == "the far process died with exit code 7"
