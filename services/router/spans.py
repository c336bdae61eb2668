"""Timelines as OpenTelemetry spans: one for the request, a child for each phase.

Theory of operation: a record is complete before the first span is made, so all spans are made at
once with the times they had. The request's span has the id that its gateway told the client in
`traceparent` (`common.trace`), and the client's span as its parent. Batching, retries and the
bound of what waits are the SDK's, on a thread of its own; what cannot be sent is lost.

The SDK is vLLM's dependency, or the extra `otel`; without an endpoint nothing of it is imported.
"""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from typing import Any

from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import SpanProcessor, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter
from opentelemetry.sdk.trace.id_generator import IdGenerator
from opentelemetry.trace import (
    NonRecordingSpan,
    SpanContext,
    SpanKind,
    Status,
    StatusCode,
    TraceFlags,
    set_span_in_context,
)

from common.trace import span_id

SERVICE = "baton"
ATTRIBUTES = (
    "request_id", "outcome", "code", "ttft_ms", "tpot_ms", "itl_ms_max", "prompt_tokens",
    "completion_tokens", "cached_tokens", "tenant", "priority", "gateway", "moves",
)  # fmt: skip
SHARE_STEPS = 1 << 32


class _Ids(IdGenerator):
    """Random, except where an id is given."""

    def __init__(self) -> None:
        self.next_span = ""

    def generate_span_id(self) -> int:
        given, self.next_span = self.next_span, ""
        return int(given, 16) if given else secrets.randbits(64) | 1

    def generate_trace_id(self) -> int:
        return secrets.randbits(128) | 1


class Spans:
    """`share`: of requests whose client traces nothing; those it traces are always told, those it
    says are not sampled never. `exporter`: instead of OTLP over HTTP to `endpoint`."""

    def __init__(self, endpoint: str, share: float, exporter: SpanExporter | None = None) -> None:
        self._share = share
        self._ids = _Ids()
        self._provider = TracerProvider(
            id_generator=self._ids, resource=Resource.create({"service.name": SERVICE})
        )
        processor: SpanProcessor = BatchSpanProcessor(exporter or OTLPSpanExporter(endpoint))
        self._provider.add_span_processor(processor)
        self._tracer = self._provider.get_tracer("baton.timeline")

    def add(self, record: dict[str, Any], unix_ms: int) -> None:
        """`unix_ms`: when the request ended."""
        parent = _parent(str(record["traceparent"]))
        wanted = parent.trace_flags.sampled if parent is not None else self._chosen()
        if not wanted:
            return
        start = unix_ms * 1_000_000 - _ns(record["total_ms"])
        self._ids.next_span = span_id(str(record["request_id"]))
        context = set_span_in_context(NonRecordingSpan(parent)) if parent is not None else None
        root = self._tracer.start_span(
            "request",
            context=context,
            kind=SpanKind.SERVER,
            attributes={f"baton.{name}": record[name] for name in ATTRIBUTES},
            start_time=start,
        )
        self._phases(record["phases"], set_span_in_context(root), start)
        if record["outcome"] not in ("ended", "closed"):
            root.set_status(Status(StatusCode.ERROR, str(record["code"])))
        root.end(unix_ms * 1_000_000)

    def close(self) -> None:
        """Sends what is left; may take the exporter's timeout."""
        self._provider.shutdown()

    def _chosen(self) -> bool:
        return secrets.randbelow(SHARE_STEPS) < self._share * SHARE_STEPS

    def _phases(self, phases: Sequence[dict[str, Any]], context: Any, start: int) -> None:
        for phase in phases:
            begun = start + _ns(phase["start_ms"])
            span = self._tracer.start_span(
                phase["phase"],
                context=context,
                attributes={"baton.attempt": phase["attempt"], "baton.worker": phase["worker"]},
                start_time=begun,
            )
            span.end(begun + _ns(phase["ms"]))


def _ns(milliseconds: float) -> int:
    return int(milliseconds * 1_000_000)


def _parent(traceparent: str) -> SpanContext | None:
    """`traceparent`: checked, or empty."""
    if not traceparent:
        return None
    _, trace, span, flags = traceparent.split("-")
    return SpanContext(int(trace, 16), int(span, 16), True, TraceFlags(int(flags, 16)))
