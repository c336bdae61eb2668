"""Records: when they are made, that their phases sum to what the gateway measured, what is kept."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from common.messages import Leg, RequestSummary
from common.telemetry.timeline import TimelineRecord
from services.router.events import Recorded
from services.router.rules.request_records import SUMMARY_WAIT_SECONDS
from services.router.timeline.recorder import KEPT_MAX, PENDING_MAX, WINDOW, Recorder, Slowest
from tests.unit.services.router.rig import Rig


def records(rig: Rig, seconds: float = 0.2) -> list[TimelineRecord]:
    return [a.record for a in rig.tick(seconds) if isinstance(a, Recorded)]


def summary(*legs: Leg, outcome: str = "ended", attempt: int = 1, **more: Any) -> RequestSummary:
    return RequestSummary(request_id="r1", attempt=attempt, outcome=outcome, legs=legs, **more)


WAY = (
    Leg("intake", 1, 2.0),
    Leg("queue", 1, 30.0),
    Leg("placed", 1, 70.0),
    Leg("decode", 1, 80.0),
)


def phases(record: TimelineRecord) -> dict[str, tuple[str, float]]:
    return {phase.phase: (phase.worker, phase.ms) for phase in record.phases}


def test_reports_divide_what_the_gateway_measured_and_add_nothing_to_it(rig: Rig) -> None:
    rig.submit()
    rig.prefilled()
    rig.started(kv_ms=15.0)
    rig.ended()
    rig.receive("g0|1", summary(*WAY, completion_tokens=8, ttft_ms=102.0))
    (made,) = records(rig)
    assert phases(made) == {
        "intake": ("", 2.0),
        "queue": ("", 0.0),
        "prefill": ("p0", 3.0),
        "transfer": ("p0>d0", 12.0),
        "first_token": ("d0", 85.0),
        "decode": ("d0", 80.0),
    }
    assert made.total_ms == 182.0
    assert made.ttft_ms == 102.0
    assert made.tpot_ms == pytest.approx(80 / 7, abs=1e-3)
    assert b"body" not in msgspec.json.encode(made)


def test_reports_that_say_more_than_there_was_are_clamped(rig: Rig) -> None:
    rig.submit()
    rig.prefilled()
    rig.started(kv_ms=9e6)
    rig.ended()
    rig.receive("g0|1", summary(Leg("queue", 1, 1.0), Leg("placed", 1, 5.0), Leg("decode", 1, 1.0)))
    (made,) = records(rig)
    assert sum(phase.ms for phase in made.phases) == made.total_ms == 7.0


def test_a_moved_request_has_its_retries_and_its_recovery(rig: Rig) -> None:
    rig.submit()
    rig.gone("d0|1")
    rig.decode("d0", "2")
    rig.submit("r1", 2)
    rig.receive(
        "g0|1",
        summary(
            Leg("queue", 1, 1.0),
            Leg("placed", 1, 5.0),
            Leg("recovery", 1, 40.0),
            Leg("queue", 2, 7.0),
            outcome="closed",
            attempt=2,
        ),
    )
    rig.cancel("r1", 2)
    rig.ended("r1", 2, error="cancelled", peer="d0|2")
    (made,) = records(rig)
    named = [(phase.phase, phase.attempt) for phase in made.phases]
    assert named[:4] == [("queue", 1), ("retry", 1), ("recovery", 1), ("queue", 2)]
    assert made.total_ms == 53.0
    assert (made.moves, len(made.attempts)) == (1, 2)


def test_the_record_waits_for_the_later_of_router_and_gateway(rig: Rig) -> None:
    rig.submit()
    rig.receive("g0|1", summary(*WAY))
    assert records(rig) == []
    rig.ended()
    assert len(records(rig)) == 1
    assert records(rig, 2 * SUMMARY_WAIT_SECONDS) == []


def test_a_request_whose_gateway_never_tells_is_recorded_as_lost(rig: Rig) -> None:
    rig.submit()
    rig.now += 0.050
    rig.started()
    rig.now += 0.100
    rig.ended()
    assert records(rig, SUMMARY_WAIT_SECONDS - 1.0) == []
    (made,) = records(rig, 2.0)
    assert (made.outcome, made.total_ms, made.completion_tokens) == ("lost", 150.0, 8)
    assert len(rig.core.tables.recorder.kept["failed"]) == 1


def test_a_refusal_is_recorded_at_once(rig: Rig) -> None:
    rig.submit(prompt=5000)
    (made,) = records(rig)
    assert (made.outcome, made.code) == ("refused", "context_length_exceeded")
    assert len(rig.core.tables.recorder.kept["refused"]) == 1


def test_a_gateway_cannot_tell_of_anothers_request(rig: Rig) -> None:
    rig.gateway("g1")
    rig.submit()
    rig.receive("g1|1", summary(*WAY))
    rig.ended()
    assert records(rig) == []
    assert rig.core.tables.counts.dropped["summary of an unknown request"] == 1


def test_the_slowest_of_a_window() -> None:
    slowest = Slowest()
    kept = [value for value in range(1, WINDOW + 1) if slowest.add(float(value % 997))]
    assert len(kept) < WINDOW
    assert slowest.add(996.0)
    assert not slowest.add(500.0)
    for _ in range(2 * WINDOW):
        slowest.add(1.0)
    assert slowest.add(2.0)


def test_the_recorder_is_bounded() -> None:
    recorder = Recorder(history=4)
    for number in range(2 * PENDING_MAX):
        recorder.schedule(f"r{number}", 0.0)
    assert (len(recorder.pending), recorder.forgotten) == (PENDING_MAX, PENDING_MAX)
    for number in range(10):
        recorder.add_summary(
            RequestSummary(request_id=f"r{number}", attempt=1, outcome="ended", legs=())
        )
    assert list(recorder.summaries) == ["r6", "r7", "r8", "r9"]
    failed = TimelineRecord(
        request_id="x", outcome="failed", code="", total_ms=1.0, ttft_ms=0.0, tpot_ms=0.0
    )
    for _ in range(2 * KEPT_MAX):
        recorder.keep(failed, 0.0)
    assert len(recorder.kept["failed"]) == len(recorder.recent) == KEPT_MAX
    recorder.check_invariants()


def test_the_names_of_a_timeline_line_are_stable(rig: Rig) -> None:
    rig.submit()
    rig.prefilled()
    rig.started(kv_ms=15.0)
    rig.ended()
    rig.receive("g0|1", summary(*WAY))
    (made,) = records(rig)
    line = msgspec.json.decode(msgspec.json.encode(made))
    assert " ".join(line) == (
        "request_id model outcome code sentence total_ms ttft_ms tpot_ms itl_ms_max prompt_tokens "
        "completion_tokens cached_tokens tenant key_id priority gateway moves traceparent phases "
        "attempts"
    )
    assert " ".join(line["phases"][0]) == "phase attempt worker start_ms ms"
    (attempt,) = line["attempts"]
    assert " ".join(attempt) == (
        "attempt state outcome total_ms gateway prompt_tokens max_tokens prefill decode policy "
        "candidates move kv workers_ms cached_tokens phases sentences"
    )
    assert " ".join(attempt["phases"][0]) == "phase start_ms end_ms"
    assert " ".join(attempt["candidates"][0]) == "role name score"
    assert " ".join(attempt["kv"]) == (
        "blocks complete messages payload_bytes wire_bytes wait_ms transfer_ms retries refetches "
        "digest_mismatches early_bytes compression raw_bytes element drafter_cold canonical "
        "overlap"
    )
