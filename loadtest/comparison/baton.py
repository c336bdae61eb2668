"""`baton bench --json FILE`."""

from __future__ import annotations

from typing import Any

import msgspec

from loadtest.bench.figures import Spread
from loadtest.bench.result import FORMAT, Result
from loadtest.comparison.load_summary import Latency, LoadSummary
from loadtest.provenance import sentence

NAME = "baton bench --json"


def matches(fields: dict[str, Any]) -> bool:
    return fields.get("format") == FORMAT


def summary(fields: dict[str, Any]) -> LoadSummary:
    """Raises msgspec.ValidationError that names the field at fault."""
    result = msgspec.convert(fields, Result)
    work, of = result.workload, result.all
    partial = f"; PARTIAL: {result.partial}" if result.partial else ""
    return LoadSummary(
        tool="baton bench",
        load=f"{work.source}; {work.arrivals}; {work.model} at {work.url}{partial}",
        ok=of.ok,
        failed=of.failed,
        seconds=of.seconds,
        requests_per_s=of.requests_per_s,
        input_tokens_per_s=of.input_tokens_per_s,
        output_tokens_per_s=of.output_tokens_per_s,
        ttft=_latency(of.ttft_ms),
        tpot=_latency(of.tpot_ms),
        e2e=_latency(of.e2e_ms),
        origin=sentence(result.provenance),
    )


def _latency(of: Spread) -> Latency:
    return Latency(of.p50, of.p90, of.p99, of.max, of.mean) if of.count else Latency()
