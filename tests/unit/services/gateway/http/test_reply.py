"""Trace headers in and out, and how a duration is written."""

from __future__ import annotations

import pytest

from services.gateway.http.reply import TRACE, server_timing, traceparent

TRACE_ID, SPAN = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"


def test_the_trace_goes_on_under_a_span_of_ours() -> None:
    ours = traceparent(f"00-{TRACE_ID}-{SPAN}-01", "r1")
    assert ours is not None
    match = TRACE.fullmatch(ours)
    assert match is not None
    assert (match[1], match[3]) == (TRACE_ID, "01")
    assert match[2] != SPAN
    assert ours == traceparent(f"00-{TRACE_ID}-{SPAN}-01", "r1")
    assert ours != traceparent(f"00-{TRACE_ID}-{SPAN}-01", "r2")


@pytest.mark.parametrize(
    "given",
    [
        None,
        "",
        "x",
        f"01-{TRACE_ID}-{SPAN}-01",
        f"00-{'0' * 32}-{SPAN}-01",
        f"00-{TRACE_ID}-{'0' * 16}-01",
        f"00-{TRACE_ID}-{SPAN}-01\r\nx: y",
        f"00-{TRACE_ID.upper()}-{SPAN}-01",
    ],
)
def test_what_is_no_trace_is_not_answered(given: str | None) -> None:
    assert traceparent(given, "r") is None


def test_phases_are_told_with_their_sum() -> None:
    told = server_timing("first-token", {"intake": 1.25, "queue": 10.5})
    assert told == "first-token;dur=11.75, intake;dur=1.25, queue;dur=10.50"


def test_what_has_one_phase_has_no_breakdown() -> None:
    assert server_timing("total", {"intake": 12.345}) == "total;dur=12.35"
