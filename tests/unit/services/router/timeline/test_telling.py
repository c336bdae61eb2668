"""Where records go: a file that is bounded and may fail, and spans that a client's trace finds."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import structlog

from common.clock import ManualClock
from common.config import Config, FleetConfig, TimelineConfig
from common.trace import span_id
from services.router.telling import Telling
from services.router.timeline_file import TimelineFile

LOG = structlog.get_logger("test")
TRACE, CLIENT = "ab" * 16, "cd" * 8


def record(request_id: str = "r1", **more: Any) -> dict[str, Any]:
    made: dict[str, Any] = {
        "request_id": request_id,
        "outcome": "ended",
        "code": "",
        "total_ms": 30.0,
        "traceparent": "",
        "tenant": "",
        "priority": "standard",
        "gateway": "g0",
        "phases": [
            {"phase": "queue", "attempt": 1, "worker": "", "start_ms": 0.0, "ms": 10.0},
            {"phase": "decode", "attempt": 1, "worker": "d0", "start_ms": 10.0, "ms": 20.0},
        ],
    }
    numbers = ("ttft_ms", "tpot_ms", "itl_ms_max", "prompt_tokens", "completion_tokens")
    made |= dict.fromkeys((*numbers, "cached_tokens", "moves"), 0)
    return made | more


async def test_one_line_for_each_request(tmp_path: Path) -> None:
    telling = Telling(Config(fleet=FleetConfig(run_dir=str(tmp_path))), "main", ManualClock(), LOG)
    telling.add(record("a"))
    telling.add(record("b"))
    telling.flush()
    lines = (tmp_path / "main.timeline.jsonl").read_text().splitlines()
    assert [json.loads(line)["request_id"] for line in lines] == ["a", "b"]
    assert json.loads(lines[0])["unix_ms"] == ManualClock().unix_ms()
    await telling.close()


def test_the_file_is_bounded(tmp_path: Path) -> None:
    path, bytes_max = tmp_path / "t.jsonl", 4096
    file = TimelineFile(path, bytes_max, LOG)
    for number in range(100):
        file.add(record(str(number)), 0)
        file.flush()
    line = len(path.read_bytes().splitlines()[0]) + 1
    sizes = [each.stat().st_size for each in tmp_path.iterdir()]
    assert len(sizes) == 2
    assert sum(sizes) <= bytes_max + 2 * line
    assert json.loads(path.read_text().splitlines()[-1])["request_id"] == "99"


def test_a_disk_that_cannot_be_written_to_harms_nothing(tmp_path: Path) -> None:
    path = tmp_path / "away" / "t.jsonl"
    file = TimelineFile(path, 1 << 20, LOG)
    with structlog.testing.capture_logs() as logs:
        file = TimelineFile(path, 1 << 20, structlog.get_logger("fresh"))
        for _ in range(3):
            file.add(record(), 0)
            file.flush()
    assert file.lost == 3
    assert [log["event"] for log in logs] == ["timeline.unwritable"]
    path.parent.mkdir()
    file.add(record("later"), 0)
    file.flush()
    assert "later" in path.read_text()


def test_no_file_is_wanted(tmp_path: Path) -> None:
    file = TimelineFile(tmp_path / "t.jsonl", 0, LOG)
    file.add(record(), 0)
    file.flush()
    assert list(tmp_path.iterdir()) == []


def spans_of(*records: dict[str, Any], share: float = 1.0) -> Any:
    pytest.importorskip("opentelemetry.sdk", reason="spans need the extra `otel`")
    from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

    from services.router.spans import Spans

    exporter = InMemorySpanExporter()
    spans = Spans("http://127.0.0.1:9/v1/traces", share, exporter)
    for each in records:
        spans.add(each, 1_700_000_000_030)
    spans.close()
    return {span.name: span for span in exporter.get_finished_spans()}


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


def test_what_is_not_sampled_is_not_told() -> None:
    assert spans_of(record(traceparent=f"00-{TRACE}-{CLIENT}-00"), record(), share=0.0) == {}
    assert set(spans_of(record(outcome="failed", code="x"))) == {"request", "queue", "decode"}


def test_an_endpoint_is_configuration(tmp_path: Path) -> None:
    pytest.importorskip("opentelemetry.sdk", reason="spans need the extra `otel`")
    timeline = TimelineConfig(otlp_endpoint="http://127.0.0.1:9/v1/traces")
    config = Config(fleet=FleetConfig(run_dir=str(tmp_path)), timeline=timeline)
    Telling(config, "main", ManualClock(), LOG)
