"""Submits that come twice, late, newer or from elsewhere; reports that are stale."""

from common.messages import (
    Abort,
    Ended,
    Failed,
    Placed,
    PrefillEnded,
    Refused,
)
from services.router.timeline.attempt_story import attempt_record
from tests.unit.services.router.rig import MOVED, Rig, standard


def refusal(rig: Rig) -> Refused:
    refused = rig.take(Refused)
    assert len(refused) == 1
    return refused[0]


def test_a_repeated_submit_is_answered_alike_and_places_nothing() -> None:
    rig = standard(max_active=1)
    rig.submit("r1")
    first = rig.take(Placed)
    rig.sent.clear()
    rig.submit("r1")
    assert rig.take(Placed) == first
    rig.submit("r2")
    rig.submit("r2")
    assert not rig.sent
    assert len(rig.core.tables.waiting) == 1
    assert rig.core.tables.counts.dropped["repeated submit"] == 2


def test_what_ended_and_is_asked_for_again_is_said_to_be_lost(rig: Rig) -> None:
    """A gateway asks again only for what has not spoken: the tokens went with a connection."""
    rig.gateway("g1")
    rig.submit("r1")
    rig.ended("r1")
    rig.sent.clear()
    rig.submit("r1")
    (failed,) = rig.take(Failed)
    assert (failed.request_id, failed.attempt) == ("r1", 1)
    assert "tokens were lost" in failed.message
    rig.submit("r1", gateway="g1|1")
    assert not rig.sent
    assert rig.core.tables.counts.dropped["old attempt"] == 2


def test_a_refused_attempt_may_be_submitted_again() -> None:
    rig = standard(max_active=1, max_queue=1)
    for name in ("r1", "r2", "r3"):
        rig.submit(name)
    assert refusal(rig).request_id == "r3"
    rig.ended("r1")
    rig.submit("r3")
    assert rig.state("r3") == "queued"


def test_a_newer_attempt_supersedes_and_an_older_one_is_dropped(rig: Rig) -> None:
    rig.submit("r1", 2)
    rig.sent.clear()
    rig.submit("r1", 3)
    assert [a.attempt for a in rig.take(Abort)] == [2, 2]
    assert [p.attempt for p in rig.take(Placed)] == [3]
    rig.submit("r1", 1)
    assert not rig.take(Placed)
    rig.ended("r1", 2, error="cancelled")
    assert (rig.state("r1", 2), rig.state("r1", 3)) == ("cancelled", "placed")
    rig.ended("r1", 3)
    assert rig.nothing_held()


def test_two_gateways_cannot_share_an_id(rig: Rig) -> None:
    rig.gateway("g1")
    rig.submit("r1", gateway="g0|1")
    rig.submit("r1", 2, gateway="g1|1")
    refused = refusal(rig)
    assert refused.code == "duplicate_request"
    rig.cancel("r1", 1, gateway="g1|1")
    assert rig.state("r1") == "placed"


def test_stale_and_foreign_reports_are_dropped_and_counted(rig: Rig) -> None:
    rig.decode("d1")
    rig.submit("r1")
    stranger = "d1|1" if rig.known().decode == "d0|1" else "d0|1"
    rig.ended("r1", peer=stranger)
    rig.ended("r1", 2)
    rig.ended("nobody")
    rig.prefilled("nobody")
    rig.started("r1", 7)
    rig.prefilled("r1", peer="d0|1")
    rig.prefilled()
    rig.prefilled()
    rig.receive("g0|1", Ended(request_id="r1", attempt=1))
    rig.receive("d0|1", PrefillEnded(request_id="r1", attempt=1, elapsed_ms=1.0))
    assert rig.state() == "placed"
    assert rig.core.tables.counts.dropped == {
        "stale end": 3,
        "stale prefill report": 2,
        "stale decode report": 1,
        "wrong role": 3,
    }


def test_a_handoff_s_report_that_comes_after_the_end_is_in_the_explanation(rig: Rig) -> None:
    rig.submit("r1")
    rig.started("r1", kv=None)
    rig.ended("r1")
    before = rig.known("r1").decode_started
    rig.now += 1.0
    rig.started("r1", kv=MOVED, kv_ms=4.0)
    report = rig.known("r1").decode_report
    assert report is not None
    assert (report.kv, report.kv_ms) == (MOVED, 4.0)
    assert rig.known("r1").decode_started == before
    story = attempt_record(rig.known("r1"), rig.now)
    assert story.kv is not None
    assert f"the handoff moved {MOVED.blocks} KV blocks" in " ".join(story.sentences)
    assert not rig.core.tables.counts.dropped


def test_a_prefill_report_that_comes_after_the_end_is_in_the_explanation(rig: Rig) -> None:
    rig.submit("r1")
    rig.started("r1", kv=MOVED)
    rig.ended("r1")
    assert rig.take(Abort) == [], "d0 took the KV, so p0 has computed the prompt and reports it"
    rig.prefilled("r1", cached_tokens=16)
    report = rig.known("r1").prefill_report
    assert report is not None
    story = " ".join(attempt_record(rig.known("r1"), rig.now).sentences)
    assert f"(16 of {rig.known('r1').request.prompt_tokens} tokens were cached)" in story
    assert rig.core.tables.estimates.prefill.count == 1
    assert not rig.core.tables.counts.dropped
    rig.prefilled("r1")
    assert rig.core.tables.counts.dropped == {"stale prefill report": 1}


def test_a_prefill_worker_whose_kv_was_not_taken_is_told_of_the_end(rig: Rig) -> None:
    rig.submit("r1")
    rig.started("r1", kv=None)
    rig.ended("r1")
    assert [abort.request_id for abort in rig.take(Abort, "p0|1")] == ["r1"]


def test_a_late_report_of_another_worker_or_without_a_handoff_is_dropped(rig: Rig) -> None:
    rig.decode("d1")
    rig.submit("r1")
    decode = rig.known("r1").decode
    other = "d1|1" if decode == "d0|1" else "d0|1"
    rig.started("r1", peer=decode, kv=None)
    rig.ended("r1", peer=decode)
    rig.started("r1", peer=other)
    rig.started("r1", peer=decode, kv=None)
    report = rig.known("r1").decode_report
    assert report is not None
    assert report.kv is None
    rig.started("r1", peer=decode)
    rig.started("r1", peer=decode)
    assert rig.core.tables.counts.dropped["stale decode report"] == 3
