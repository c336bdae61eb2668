"""Points of the charts: differences, never across a restart, and quantiles of what just ended."""

from __future__ import annotations

from typing import Any

import pytest

from common.net.admin_status import Status, Totals
from services.health.dashboard.series import POINTS_MAX, Series, quantile


def status(ended: int, refused: int = 0, ttft_slo_ms: float = 0.0) -> Status:
    fields: dict[str, Any] = dict.fromkeys(Status.__struct_fields__, "")
    return Status(
        **(
            fields
            | {
                "totals": Totals(submitted=ended, ended=ended),
                "refused": {"queue_full": refused},
                "active": 3,
                "queued": 1,
                "prefill_ready": 2,
                "decode_ready": 3,
                "ttft_slo_ms": ttft_slo_ms,
            }
        )
    )


def row(ago_ms: float, ttft_ms: float, outcome: str = "ended") -> dict[str, Any]:
    return {"ago_ms": ago_ms, "ttft_ms": ttft_ms, "tpot_ms": 10.0, "outcome": outcome}


def test_rates_are_of_the_time_between_two_looks() -> None:
    series = Series()
    assert series.add(10.0, 0, status(5), []) is None
    point = series.add(12.0, 2000, status(9, refused=2), [row(100, 50.0), row(1900, 90.0)])
    assert point is not None
    assert (point["ended"], point["goodput"], point["refused"]) == (2.0, 2.0, 1.0)
    assert (point["ttft_p50"], point["ttft_p99"], point["tpot_p50"]) == (90.0, 90.0, 10.0)
    assert (point["prefill"], point["decode"]) == (2.0, 3.0)


def test_only_what_ended_since_counts_and_only_within_the_slo_is_good() -> None:
    series = Series()
    series.add(10.0, 0, status(0), [])
    rows = [row(100, 50.0), row(500, 900.0), row(100, 1.0, "failed"), row(9000, 1.0)]
    point = series.add(12.0, 0, status(4, ttft_slo_ms=100.0), rows)
    assert point is not None
    assert (point["ended"], point["goodput"], point["ttft_p50"]) == (2.0, 1.0, 900.0)


def test_a_restarted_router_begins_anew() -> None:
    series = Series()
    series.add(10.0, 0, status(50), [])
    assert series.add(12.0, 0, status(1), []) is None
    assert series.add(14.0, 0, status(3), []) is not None


def test_it_is_bounded_and_nothing_is_no_quantile() -> None:
    series = Series()
    for number in range(POINTS_MAX + 10):
        series.add(float(number), number, status(number), [])
    assert len(series.points) == POINTS_MAX
    assert series.points[-1]["ttft_p50"] is None
    assert quantile([], 0.5) is None
    assert quantile([3.0, 1.0, 2.0], 0.5) == 2.0
    assert quantile([float(n) for n in range(100)], 0.99) == pytest.approx(99.0)
