"""Timelines as OpenTelemetry spans: one for the request, a child for each phase.

Theory of operation: a record is complete before the first span is made, so all spans are made at
once, with the times that they had. The request's span has the id that its gateway sent the client
in `traceparent` (`common.telemetry.trace`), and the client's span as its parent. The SDK batches,
retries and bounds its queue on a thread of its own; spans that it cannot send are lost.

The SDK comes with vLLM or with the extra `otel`; without an endpoint it is not imported.
"""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from typing import Any

import msgspec
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

from common.telemetry.timeline import Phase, TimelineRecord
from common.telemetry.trace import span_id

SERVICE = "baton"
ATTRIBUTES = (
    "request_id", "outcome", "code", "ttft_ms", "tpot_ms", "itl_ms_max", "prompt_tokens",
    "completion_tokens", "cached_tokens", "tenant", "priority", "gateway", "moves",
)  # fmt: skip
SHARE_STEPS = 1 << 32


class _Ids(IdGenerator):
    """Random ids, except where the next span's id is given."""

    def __init__(self) -> None:
        self.next_span = ""

    def generate_span_id(self) -> int:
        given, self.next_span = self.next_span, ""
        return int(given, 16) if given else secrets.randbits(64) | 1

    def generate_trace_id(self) -> int:
        return secrets.randbits(128) | 1


class Spans:
    """`share`: share of the untraced requests that are exported. A request that its client traces
    is always exported, and one that its client marks as not sampled never. `exporter`: replaces
    OTLP over HTTP to `endpoint`."""

    def __init__(self, endpoint: str, share: float, exporter: SpanExporter | None = None) -> None:
        self._share = share
        self._ids = _Ids()
        self._provider = TracerProvider(
            id_generator=self._ids, resource=Resource.create({"service.name": SERVICE})
        )
        processor: SpanProcessor = BatchSpanProcessor(exporter or OTLPSpanExporter(endpoint))
        self._provider.add_span_processor(processor)
        self._tracer = self._provider.get_tracer("baton.timeline")

    def add(self, record: TimelineRecord, unix_ms: int) -> None:
        """`unix_ms`: when the request ended."""
        parent = _parent(record.traceparent)
        wanted = parent.trace_flags.sampled if parent is not None else self._chosen()
        if not wanted:
            return
        start = unix_ms * 1_000_000 - _ns(record.total_ms)
        self._ids.next_span = span_id(record.request_id)
        context = set_span_in_context(NonRecordingSpan(parent)) if parent is not None else None
        root = self._tracer.start_span(
            "request",
            context=context,
            kind=SpanKind.SERVER,
            attributes=_attributes(record),
            start_time=start,
        )
        self._phases(record.phases, set_span_in_context(root), start)
        if record.outcome not in ("ended", "closed"):
            root.set_status(Status(StatusCode.ERROR, record.code))
        root.end(unix_ms * 1_000_000)

    def close(self) -> None:
        """Sends the remaining spans; may take as long as the exporter's timeout."""
        self._provider.shutdown()

    def _chosen(self) -> bool:
        return secrets.randbelow(SHARE_STEPS) < self._share * SHARE_STEPS

    def _phases(self, phases: Sequence[Phase], context: Any, start: int) -> None:
        for phase in phases:
            begun = start + _ns(phase.start_ms)
            span = self._tracer.start_span(
                phase.phase,
                context=context,
                attributes={"baton.attempt": phase.attempt, "baton.worker": phase.worker},
                start_time=begun,
            )
            span.end(begun + _ns(phase.ms))


def _attributes(record: TimelineRecord) -> dict[str, str | int | float]:
    fields = msgspec.structs.asdict(record)
    return {f"baton.{name}": fields[name] for name in ATTRIBUTES}


def _ns(milliseconds: float) -> int:
    return int(milliseconds * 1_000_000)


def _parent(traceparent: str) -> SpanContext | None:
    """`traceparent`: checked, or empty."""
    if not traceparent:
        return None
    _, trace, span, flags = traceparent.split("-")
    return SpanContext(int(trace, 16), int(span, 16), True, TraceFlags(int(flags, 16)))
