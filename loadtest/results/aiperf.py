"""AIPerf's `profile_export_aiperf.json`, as its documentation describes schema 1.

A block of statistics by metric; a single figure stands in `avg`. Its inter-token latency is the
mean of an answer, which is TPOT here.
"""

from __future__ import annotations

from typing import Any

import msgspec

from loadtest.results.seen import Latency, Seen

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
        each = (self.p50, self.p90, self.p99, self.max, self.avg)
        if self.unit not in UNITS_MS:
            raise msgspec.ValidationError(f"{self.unit!r} is no unit of time known here")
        times = UNITS_MS[self.unit]
        return Latency(*(None if value is None else value * times for value in each))


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


def is_one(fields: dict[str, Any]) -> bool:
    return {"schema_version", "request_latency", "request_throughput"} <= fields.keys()


def seen(fields: dict[str, Any]) -> Seen:
    """Raises msgspec.ValidationError that says what is not as it should be."""
    told = msgspec.convert(fields, _File)
    if not told.schema_version.startswith(MAJOR):
        raise msgspec.ValidationError(f"schema {told.schema_version}, {MAJOR}x is read here")
    command = (told.run_info.cli_command if told.run_info else None) or "command not told"
    ok, rate = round(told.request_count.avg or 0), told.request_throughput.avg or 0.0
    return Seen(
        tool=f"aiperf {told.aiperf_version}".strip(),
        load=command + ("; PARTIAL: cancelled" if told.was_cancelled else ""),
        ok=ok,
        failed=round(told.error_request_count.avg or 0),
        seconds=(told.benchmark_duration.latency().mean or 0.0) / 1000 or ok / max(rate, 1e-9),
        requests_per_s=rate,
        input_tokens_per_s=None,
        output_tokens_per_s=told.output_token_throughput.avg or 0.0,
        ttft=told.time_to_first_token.latency(),
        tpot=told.inter_token_latency.latency(),
        e2e=told.request_latency.latency(),
        origin=f"begun {told.start_time or 'at a time not told'}; the file names no machine",
    )
