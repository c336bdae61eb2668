"""Bytes a second by pair."""

import msgspec
import pytest

from common.messages import KvReport
from services.router.estimates import pair_bandwidth
from services.router.estimates.pair_bandwidth import PairBandwidth


def report(size: int, messages: int, milliseconds: float) -> KvReport:
    return KvReport(
        blocks=1, messages=messages, payload_bytes=size, wire_bytes=size, transfer_ms=milliseconds
    )


def early(size: int, milliseconds: float) -> KvReport:
    """Of 8 MB, `size` left before the prefill ended."""
    return msgspec.structs.replace(report(8_000_000, 4, milliseconds), early_bytes=size)


def test_the_first_message_is_not_in_the_time_and_not_in_the_bytes() -> None:
    bandwidth = PairBandwidth(64, 1e9)
    bandwidth.record_transfer("p0", "d0", report(8_000_000, 4, 3.0))
    assert bandwidth.bytes_per_s("p0", "d0") == pytest.approx(2e9)


@pytest.mark.parametrize("silent", [report(1000, 1, 0.0), report(0, 3, 1.0), report(1000, 2, 0.0)])
def test_what_says_nothing_is_not_counted(silent: KvReport) -> None:
    bandwidth = PairBandwidth(64, 1e9)
    bandwidth.record_transfer("p0", "d0", silent)
    assert bandwidth.bytes_per_s("p0", "d0") == 1e9


def test_what_p_computed_meanwhile_says_only_that_the_wire_is_no_slower() -> None:
    bandwidth = PairBandwidth(64, 1e9)
    paced = early(6_000_000, 300.0)
    bandwidth.record_transfer("p0", "d0", paced)
    assert bandwidth.bytes_per_s("p0", "d0") == 1e9
    bandwidth.record_transfer("p0", "d0", early(6_000_000, 3.0))
    assert bandwidth.bytes_per_s("p0", "d0") == pytest.approx(2e9)
    bandwidth.record_transfer("p0", "d0", paced)
    assert bandwidth.bytes_per_s("p0", "d0") == pytest.approx(2e9)
    for _ in range(300):
        bandwidth.record_transfer("p0", "d0", early(2_000_000, 300.0))
    assert bandwidth.bytes_per_s("p0", "d0") < 3e7, "a slow wire shows"


def test_an_unmeasured_pair_answers_as_the_fleet_does() -> None:
    bandwidth = PairBandwidth(64, 1e9)
    for _ in range(10):
        bandwidth.record_transfer("p0", "d0", report(2_000_000, 2, 1.0))
        bandwidth.record_transfer("p1", "d0", report(2_000_000, 2, 4.0))
    assert bandwidth.bytes_per_s("p0", "d0") == pytest.approx(1e9)
    assert bandwidth.bytes_per_s("p1", "d0") == pytest.approx(0.25e9)
    assert bandwidth.bytes_per_s("p9", "d0") == bandwidth.bytes_per_s()
    assert 0.25e9 < bandwidth.bytes_per_s() < 1e9


def test_pairs_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pair_bandwidth, "PAIRS_MAX", 3)
    bandwidth = PairBandwidth(64, 1e9)
    for i in range(9):
        bandwidth.record_transfer(f"p{i}", "d0", report(2_000_000, 2, 1.0))
    assert list(bandwidth.known(2)) == ["p7>d0", "p8>d0"]
    assert len(bandwidth._pairs) == 3
