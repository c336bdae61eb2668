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
from loadtest.results.seen import Latency, Seen

NAME = "vllm bench serve --save-result"
SUMS = ("median", "p90", "p99", "max", "mean")


class _File(msgspec.Struct):
    """`e2el` is not among what it sums up by default, but every request's `latencies` are told."""

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


def is_one(fields: dict[str, Any]) -> bool:
    return {"request_throughput", "completed", "model_id", "request_rate"} <= fields.keys()


def seen(fields: dict[str, Any]) -> Seen:
    """Raises msgspec.ValidationError that names the field at fault."""
    told = msgspec.convert(fields, _File)
    at_once = f", {told.max_concurrency} at once at most" if told.max_concurrency else ""
    return Seen(
        tool="vllm bench serve",
        load=f"{told.request_rate} requests/s{at_once}; {told.model_id} by {told.backend}",
        ok=told.completed,
        failed=told.failed,
        seconds=told.duration,
        requests_per_s=told.request_throughput,
        input_tokens_per_s=told.total_input_tokens / told.duration if told.duration else None,
        output_tokens_per_s=told.output_throughput,
        ttft=_latency(fields, "ttft", _succeeded(told, told.ttfts)),
        tpot=_latency(fields, "tpot", []),
        e2e=_latency(fields, "e2el", _succeeded(told, told.latencies)),
        origin=f"written {told.date}; the file names no machine",
    )


def _succeeded(told: _File, each: Sequence[float]) -> list[float]:
    """Nothing where some failed and the file does not say which."""
    if told.errors:
        return [s for s, error in zip(each, told.errors, strict=False) if not error]
    return [] if told.failed or told.failed is None else list(each)


def _latency(fields: dict[str, Any], name: str, seconds: Sequence[float]) -> Latency:
    """As it was summed up; what that leaves out, of the requests themselves where there are any."""
    summed = [_number(fields.get(f"{key}_{name}_ms")) for key in SUMS]
    if not seconds:
        return Latency(*summed)
    ms = [1000 * each for each in seconds]
    share = quantiles(ms)
    counted = (share.p50, share.p90, share.p99, max(ms), fmean(ms))
    return Latency(*(c if s is None else s for s, c in zip(summed, counted, strict=True)))


def _number(value: object) -> float | None:
    return float(value) if isinstance(value, int | float) else None
