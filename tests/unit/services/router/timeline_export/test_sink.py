"""Where records go: a file that is bounded and may fail, and spans that a client's trace finds."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import structlog

from common.clock import ManualClock
from common.config import Config, FleetConfig
from common.telemetry.timeline import Phase, TimelineRecord
from services.router.timeline_export.file import TimelineFile
from services.router.timeline_export.sink import TimelineSink

LOG = structlog.get_logger("test")
TRACE, CLIENT = "ab" * 16, "cd" * 8


def record(request_id: str = "r1", **more: Any) -> TimelineRecord:
    phases = (Phase("queue", 1, "", 0.0, 10.0), Phase("decode", 1, "d0", 10.0, 20.0))
    fields: dict[str, Any] = {"outcome": "ended", "code": "", "priority": "standard"}
    times = {"total_ms": 30.0, "ttft_ms": 0.0, "tpot_ms": 0.0}
    return TimelineRecord(
        request_id=request_id, gateway="g0", phases=phases, **(fields | times | more)
    )


async def test_one_line_for_each_request(tmp_path: Path) -> None:
    sink = TimelineSink(
        Config(fleet=FleetConfig(run_dir=str(tmp_path))), "main", ManualClock(), LOG
    )
    sink.add(record("a"))
    sink.add(record("b"))
    sink.flush()
    lines = (tmp_path / "main.timeline.jsonl").read_text().splitlines()
    assert [json.loads(line)["request_id"] for line in lines] == ["a", "b"]
    assert json.loads(lines[0])["unix_ms"] == ManualClock().unix_ms()
    await sink.close()


def test_the_file_is_bounded(tmp_path: Path) -> None:
    path, bytes_max = tmp_path / "t.jsonl", 4096
    file = TimelineFile(path, bytes_max, LOG)
    for number in range(100):
        file.add(record(str(number)), 0)
        file.flush()
    line = len(path.read_bytes().splitlines()[0]) + 1
    sizes = [path.stat().st_size for path in tmp_path.iterdir()]
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
