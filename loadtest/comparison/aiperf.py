"""AIPerf's `profile_export_aiperf.json`, as its documentation describes schema 1.

A block of statistics by metric; a single figure stands in `avg`. Its inter-token latency is the
mean of an answer, which is TPOT here.
"""

from __future__ import annotations

from typing import Any

import msgspec

from loadtest.comparison.load_summary import Latency, LoadSummary

NAME = "AIPerf's profile_export_aiperf.json"
MAJOR = "1."
UNITS_MS = {"ms": 1.0, "sec": 1000.0, "s": 1000.0, "us": 1e-3, "ns": 1e-6}


class _Block(msgspec.Struct, frozen=True):
    unit: str
    avg: float | None = None
    p50: float | None = None
    p90: float | None = None
    p99: float | None = None
    max: float | None = None

    def latency(self) -> Latency:
        values = (self.p50, self.p90, self.p99, self.max, self.avg)
        if self.unit not in UNITS_MS:
            raise msgspec.ValidationError(f"{self.unit!r} is no unit of time known here")
        times = UNITS_MS[self.unit]
        return Latency(*(None if value is None else value * times for value in values))


NONE = _Block("ms")


class _RunInfo(msgspec.Struct):
    cli_command: str | None = None


class _File(msgspec.Struct):
    schema_version: str
    request_count: _Block
    request_throughput: _Block
    request_latency: _Block
    benchmark_duration: _Block = NONE
    output_token_throughput: _Block = NONE
    error_request_count: _Block = NONE
    time_to_first_token: _Block = NONE
    inter_token_latency: _Block = NONE
    aiperf_version: str = ""
    start_time: str = ""
    was_cancelled: bool = False
    run_info: _RunInfo | None = None


def matches(fields: dict[str, Any]) -> bool:
    return {"schema_version", "request_latency", "request_throughput"} <= fields.keys()


def summary(fields: dict[str, Any]) -> LoadSummary:
    """Raises msgspec.ValidationError that names the field at fault."""
    result = msgspec.convert(fields, _File)
    if not result.schema_version.startswith(MAJOR):
        raise msgspec.ValidationError(f"schema {result.schema_version}, {MAJOR}x is read here")
    command = (result.run_info.cli_command if result.run_info else None) or "unknown command"
    ok, rate = round(result.request_count.avg or 0), result.request_throughput.avg or 0.0
    return LoadSummary(
        tool=f"aiperf {result.aiperf_version}".strip(),
        load=command + ("; PARTIAL: cancelled" if result.was_cancelled else ""),
        ok=ok,
        failed=round(result.error_request_count.avg or 0),
        seconds=(result.benchmark_duration.latency().mean or 0.0) / 1000 or ok / max(rate, 1e-9),
        requests_per_s=rate,
        input_tokens_per_s=None,
        output_tokens_per_s=result.output_token_throughput.avg or 0.0,
        ttft=result.time_to_first_token.latency(),
        tpot=result.inter_token_latency.latency(),
        e2e=result.request_latency.latency(),
        origin=f"begun {result.start_time or 'at an unknown time'}; the file names no machine",
    )
