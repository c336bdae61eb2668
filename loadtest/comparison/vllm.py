"""`vllm bench serve --save-result`, with or without `--save-detailed`.

Of latencies it writes mean, median and the percentiles that were asked for (99 by default), named
`p99_ttft_ms`; the details hold each request's, in seconds, failed ones among them.
"""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean
from typing import Any

import msgspec

from loadtest.capacity.report import quantiles
from loadtest.comparison.load_summary import Latency, LoadSummary

NAME = "vllm bench serve --save-result"
SUMS = ("median", "p90", "p99", "max", "mean")


class _File(msgspec.Struct):
    """The file. `e2el` is not summed up by default, but `latencies` has every request's."""

    date: str
    backend: str
    model_id: str
    duration: float
    completed: int
    total_input_tokens: int
    total_output_tokens: int
    request_throughput: float
    output_throughput: float
    request_rate: float | str
    failed: int | None = None
    max_concurrency: int | None = None
    latencies: list[float] = []
    ttfts: list[float] = []
    errors: list[str] = []


def matches(fields: dict[str, Any]) -> bool:
    return {"request_throughput", "completed", "model_id", "request_rate"} <= fields.keys()


def summary(fields: dict[str, Any]) -> LoadSummary:
    """Raises msgspec.ValidationError that names the field at fault."""
    result = msgspec.convert(fields, _File)
    at_once = f", {result.max_concurrency} at once at most" if result.max_concurrency else ""
    return LoadSummary(
        tool="vllm bench serve",
        load=f"{result.request_rate} requests/s{at_once}; {result.model_id} by {result.backend}",
        ok=result.completed,
        failed=result.failed,
        seconds=result.duration,
        requests_per_s=result.request_throughput,
        input_tokens_per_s=result.total_input_tokens / result.duration if result.duration else None,
        output_tokens_per_s=result.output_throughput,
        ttft=_latency(fields, "ttft", _succeeded(result, result.ttfts)),
        tpot=_latency(fields, "tpot", []),
        e2e=_latency(fields, "e2el", _succeeded(result, result.latencies)),
        origin=f"written {result.date}; the file names no machine",
    )


def _succeeded(result: _File, seconds: Sequence[float]) -> list[float]:
    """Empty if some failed and the file does not name them."""
    if result.errors:
        return [s for s, error in zip(seconds, result.errors, strict=False) if not error]
    return [] if result.failed or result.failed is None else list(seconds)


def _latency(fields: dict[str, Any], name: str, seconds: Sequence[float]) -> Latency:
    """As it was summed up; what that leaves out, of the requests themselves where there are any."""
    summed = [_number(fields.get(f"{key}_{name}_ms")) for key in SUMS]
    if not seconds:
        return Latency(*summed)
    ms = [1000 * value for value in seconds]
    share = quantiles(ms)
    counted = (share.p50, share.p90, share.p99, max(ms), fmean(ms))
    return Latency(*(c if s is None else s for s, c in zip(summed, counted, strict=True)))


def _number(value: object) -> float | None:
    return float(value) if isinstance(value, int | float) else None
