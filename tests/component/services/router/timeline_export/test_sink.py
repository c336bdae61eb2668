"""Where records go: a file that is bounded and may fail, and spans that a client's trace finds: the
tests that start something."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from common.clock import ManualClock
from common.config import Config, FleetConfig, TimelineConfig
from common.telemetry.timeline import TimelineRecord
from common.telemetry.trace import span_id
from services.router.timeline_export.sink import TimelineSink
from tests.unit.services.router.timeline_export.test_sink import (
    CLIENT,
    LOG,
    TRACE,
    record,
)


def test_spans_hang_under_the_clients_and_have_their_true_times() -> None:
    spans = spans_of(record(traceparent=f"00-{TRACE}-{CLIENT}-01"), share=0.0)
    root, decode = spans["request"], spans["decode"]
    assert f"{root.context.trace_id:032x}" == f"{decode.context.trace_id:032x}" == TRACE
    assert f"{root.parent.span_id:016x}" == CLIENT
    assert f"{root.context.span_id:016x}" == span_id("r1")
    assert decode.parent.span_id == root.context.span_id
    assert (root.end_time - root.start_time) == 30_000_000
    assert (decode.start_time - root.start_time, decode.end_time) == (10_000_000, root.end_time)
    assert decode.attributes["baton.worker"] == "d0"


def test_an_endpoint_is_configuration(tmp_path: Path) -> None:
    pytest.importorskip("opentelemetry.sdk", reason="spans need the extra `otel`")
    timeline = TimelineConfig(otlp_endpoint="http://127.0.0.1:9/v1/traces")
    config = Config(fleet=FleetConfig(run_dir=str(tmp_path)), timeline=timeline)
    TimelineSink(config, "main", ManualClock(), LOG)


def spans_of(*records: TimelineRecord, share: float = 1.0) -> Any:
    pytest.importorskip("opentelemetry.sdk", reason="spans need the extra `otel`")
    from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

    from services.router.timeline_export.spans import Spans

    exporter = InMemorySpanExporter()
    spans = Spans("http://127.0.0.1:9/v1/traces", share, exporter)
    for exported in records:
        spans.add(exported, 1_700_000_000_030)
    spans.close()
    return {span.name: span for span in exporter.get_finished_spans()}


def test_what_is_not_sampled_is_not_exported() -> None:
    assert spans_of(record(traceparent=f"00-{TRACE}-{CLIENT}-00"), record(), share=0.0) == {}
    assert set(spans_of(record(outcome="failed", code="x"))) == {"request", "queue", "decode"}
