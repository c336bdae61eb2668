"""Starts of streams whose handoff's report comes after their end."""

from common.messages import DecodeStarted, KvReport
from services.decode.late_reports import AWAITED_MAX, LateReports
from tests.rigs.messages import kv_done

REPORT = KvReport(blocks=3, complete=True)


def started(request_id: str, attempt: int = 1) -> DecodeStarted:
    return DecodeStarted(request_id=request_id, attempt=attempt, elapsed_ms=7.0, cached_tokens=5)


def test_the_start_is_told_once_more_with_its_report() -> None:
    late = LateReports()
    late.wait_for(started("r"))
    assert late.take(kv_done("other")) == []
    (told,) = late.take(kv_done("r", report=REPORT))
    assert (told.kv, told.kv_ms, told.cached_tokens) == (REPORT, 7.0, 5)
    assert late.take(kv_done("r", report=REPORT)) == []


def test_attempts_are_told_apart() -> None:
    late = LateReports()
    late.wait_for(started("r", 2))
    assert late.take(kv_done("r", 1)) == []
    assert len(late.take(kv_done("r", 2))) == 1


def test_the_table_is_bounded_and_the_oldest_is_forgotten() -> None:
    late = LateReports()
    for at in range(AWAITED_MAX + 1):
        late.wait_for(started(f"r{at}"))
    late.check_invariants()
    assert late.take(kv_done("r0")) == []
    assert len(late.take(kv_done(f"r{AWAITED_MAX}"))) == 1
