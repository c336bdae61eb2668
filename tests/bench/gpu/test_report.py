from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from tests.bench.gpu.report import (
    Check,
    Outcome,
    Results,
    Row,
    compared,
    markdown,
    read,
    text_table,
    value_of,
)

RAW = Row("raw", "device to device, 64 MiB, 2 in flight", 640.0, "GB/s")
MOVED = compared("throughput", "device path", 512.0, "GB/s", against="raw UCXX", base=RAW.value)


def results(**more: Outcome) -> Results:
    about = {"card": "a card (141 GiB)", "driver": "580.1"}
    parts = {
        "raw": Outcome(rows=[RAW], about=about, seconds=1.5),
        "throughput": Outcome(rows=[MOVED], checks=[Check("bytes", passed=True)]),
    }
    return Results(parts=parts | more)


def test_a_figure_is_compared_with_one_of_the_same_run() -> None:
    assert (MOVED.ratio, MOVED.against) == (0.8, "raw UCXX")


@pytest.mark.parametrize("base", [None, 0.0])
def test_what_was_not_measured_makes_no_ratio(base: float | None) -> None:
    row = compared("latency", "device path", 1.0, "ms", against="raw UCXX", base=base)
    assert (row.ratio, row.against) == (None, "")


def test_a_value_is_found_by_its_part_and_its_name() -> None:
    rows = results().rows
    assert value_of(rows, "raw", RAW.what) == 640.0
    assert value_of(rows, "throughput", RAW.what) is None


def test_the_file_gives_back_what_was_written(tmp_path: Path) -> None:
    path = tmp_path / "new" / "gpu.json"
    results().write(path)
    assert msgspec.structs.asdict(read(path)) == msgspec.structs.asdict(results())


def test_a_file_of_another_kind_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "other.json"
    path.write_text('{"parts": 3}')
    with pytest.raises(msgspec.ValidationError):
        read(path)


def test_faults_are_failed_checks_and_broken_parts() -> None:
    failed = Outcome(checks=[Check("kernel", passed=False, detail="3 bytes differ")])
    broken = Outcome(failure="it did not end within 5 s")
    assert results().faults == []
    assert results(correctness=failed, steps=broken).faults == [
        "kernel: 3 bytes differ",
        "steps: it did not end within 5 s",
    ]


def test_the_table_has_a_line_for_each_figure_and_the_verdict() -> None:
    lines = text_table(results()).splitlines()
    assert lines[1].split() == ["raw", *RAW.what.split(), "640", "GB/s"]
    assert lines[2].split() == [
        "throughput",
        "device",
        "path",
        "512",
        "GB/s",
        "0.80",
        "raw",
        "UCXX",
    ]
    assert lines[-1] == "1 of 1 checks passed"
    assert lines[1].index("640") == lines[2].index("512")


def test_the_table_shouts_what_failed() -> None:
    broken = results(steps=Outcome(failure="a process died"))
    assert "FAILED: steps: a process died" in text_table(broken)


def test_markdown_names_the_card_and_has_the_ratio() -> None:
    lines = markdown(results()).splitlines()
    assert lines[0] == "card a card (141 GiB), driver 580.1"
    assert "| throughput | device path | 512 GB/s | 0.80 | raw UCXX |" in lines
    assert "| raw | device to device, 64 MiB, 2 in flight | 640 GB/s |  |  |" in lines
