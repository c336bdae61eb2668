"""Tensor parallel ranks: each connects to its peer rank, and together they are one worker."""

from __future__ import annotations

import msgspec
import pytest

from common.errors import Code
from common.kv.daemon_link.ranks import PARTIAL_ENDS_MAX, RankMerge, merged_status
from common.kv.messages import KvDone, KvStatus
from common.messages import KvCounts, KvReport
from tests.rigs.messages import kv_done, kv_hold


def done(error: str = "", trouble: str = "", request_id: str = "r", **report: float) -> KvDone:
    told = msgspec.convert(report, KvReport)
    return kv_done(request_id, report=told, error=error, trouble=trouble)


def test_a_handoff_is_over_when_all_ranks_are() -> None:
    merge = RankMerge(3)
    assert merge.add(done(blocks=4, payload_bytes=10, transfer_ms=2.0, early_bytes=5)) is None
    assert merge.add(done(request_id="other")) is None
    assert merge.add(done(blocks=4, payload_bytes=10, transfer_ms=9.0, retries=1)) is None
    whole = merge.add(done(blocks=4, payload_bytes=10, transfer_ms=1.0))
    assert whole is not None
    assert whole.report == KvReport(
        blocks=4, payload_bytes=30, transfer_ms=9.0, early_bytes=5, retries=1
    )
    assert whole.error == ""


@pytest.mark.parametrize("failed", [0, 1])
def test_one_rank_that_failed_is_a_failed_handoff(failed: int) -> None:
    merge = RankMerge(2)
    ends = [done(), done()]
    ends[failed] = done(error=Code.KV_TRANSFER_FAILED, trouble="digest")
    assert merge.add(ends[0]) is None
    whole = merge.add(ends[1])
    assert whole is not None
    assert (whole.error, whole.trouble) == (Code.KV_TRANSFER_FAILED, "digest")


def test_a_handoff_is_complete_when_it_is_on_every_rank() -> None:
    for ends in ((True, True), (True, False), (False, True)):
        merge = RankMerge(2)
        assert merge.add(done(blocks=4, complete=ends[0])) is None
        whole = merge.add(done(blocks=4, complete=ends[1]))
        assert whole is not None
        assert whole.report.complete == all(ends)


def test_the_status_of_one_rank_is_not_changed() -> None:
    merge, end = RankMerge(1), done(blocks=2)
    assert merge.add(end) is end
    status = KvStatus(counts=KvCounts(handoffs_in=2))
    assert merged_status([status]) is status


def test_ends_that_wait_for_a_rank_are_bounded() -> None:
    merge = RankMerge(2)
    for at in range(PARTIAL_ENDS_MAX + 1):
        assert merge.add(done(request_id=str(at))) is None
    assert merge.add(done(request_id="0")) is None, "the oldest was forgotten"
    assert merge.add(done(request_id=str(PARTIAL_ENDS_MAX))) is not None


def test_counts_of_ranks_are_one_workers() -> None:
    def status(size: int, left: float) -> KvStatus:
        hold = kv_hold(blocks=3, bytes=size, lease_left_ms=left)
        counts = KvCounts(handoffs_in=2, bytes_in=size, digest_mismatches=1)
        return KvStatus(counts=counts, holds=(hold,), holds_total=1)

    merged = merged_status([status(10, 5.0), status(20, 7.0)])
    assert merged.counts == KvCounts(handoffs_in=2, bytes_in=30, digest_mismatches=2)
    (hold,) = merged.holds
    assert (hold.blocks, hold.bytes, hold.lease_left_ms, merged.holds_total) == (3, 30, 7.0, 1)
