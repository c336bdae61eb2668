"""The command `python -m tests.bench.gpu`, and what it drives, over host memory."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from tests.bench.gpu import __main__ as command
from tests.bench.gpu.report import Outcome, Results, Row, read

COMMAND = [sys.executable, "-m", "tests.bench.gpu"]
ROOT = Path(__file__).parents[3]


def over_host_memory(part: str, out: Path) -> Results:
    asked = ["--host", "--only", part, "--out", str(out)]
    ended = subprocess.run(
        [*COMMAND, *asked], cwd=ROOT, capture_output=True, text=True, timeout=120, check=False
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr
    return read(out)


def test_handoffs_arrive_byte_for_byte(tmp_path: Path) -> None:
    checks = over_host_memory("correctness", tmp_path / "gpu.json").parts["correctness"].checks
    assert len(checks) == 18
    assert all(check.passed for check in checks)
    assert sum("withdrawn" in check.what for check in checks) == 2


def test_a_store_keeps_what_it_was_given_byte_for_byte(tmp_path: Path) -> None:
    part = over_host_memory("store", tmp_path / "gpu.json").parts["store"]
    assert [check.passed for check in part.checks] == [True] * 4
    assert [row.what for row in part.rows] == ["save", "load"]
    assert all(row.value > 0 for row in part.rows)


def test_handoffs_go_on_beside_the_steps_of_both_ends(tmp_path: Path) -> None:
    rows = over_host_memory("steps", tmp_path / "gpu.json").rows
    assert [row.unit for row in rows] == ["ms", "ms", "GB/s"] * 2
    assert all(row.value > 0 for row in rows)
    assert all(row.ratio is not None for row in rows if row.unit == "ms")


def test_ctrl_c_ends_all_processes(tmp_path: Path) -> None:
    asked = ["--host", "--only", "latency", "--out", str(tmp_path / "gpu.json")]
    process = subprocess.Popen([*COMMAND, *asked], cwd=ROOT, stderr=subprocess.DEVNULL)
    children: list[psutil.Process] = []
    deadline = time.monotonic() + 60
    while len(children) < 2 and time.monotonic() < deadline:
        time.sleep(0.05)
        found = psutil.Process(process.pid).children()
        children = [child for child in found if "spawn_main" in " ".join(child.cmdline())]
    process.send_signal(signal.SIGINT)
    assert process.wait(20) == command.INTERRUPTED
    assert psutil.wait_procs(children, 10)[1] == []


def test_a_host_without_a_gpu_is_told_why(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(command, "unusable", lambda: "torch finds no GPU")
    assert command.main([]) == command.NO_GPU
    assert capsys.readouterr().err == "make gpu: torch finds no GPU\n"


def test_a_failed_check_or_part_fails_the_run(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    outcomes = {"copies": Outcome(), "nvml": Outcome(failure="a process died")}
    monkeypatch.setattr(command, "unusable", lambda: "")
    monkeypatch.setattr(command, "run", lambda part, *_: outcomes[part.name])
    asked = ["--out", str(tmp_path / "gpu.json"), "--only"]
    assert command.main([*asked, "copies"]) == 0
    assert command.main([*asked, "nvml"]) == command.FAILED


def test_a_part_that_does_not_exist_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        command.main(["--only", "tokens"])
    assert "correctness" in capsys.readouterr().err


def test_the_markdown_is_printed_from_a_file(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "gpu.json"
    Results(parts={"copies": Outcome(rows=[Row("copies", "d2d", 1924.0, "GB/s")])}).write(path)
    assert command.main(["--table", str(path)]) == 0
    assert "| copies | d2d | 1924 GB/s |  |  |" in capsys.readouterr().out


def test_a_file_that_cannot_be_read_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert command.main(["--table", str(tmp_path / "none.json")]) == command.FAILED
    assert "none.json cannot be read" in capsys.readouterr().err


def test_nothing_here_needs_vllm() -> None:
    """Nor anything else that a host with torch and the wheels lacks."""
    code = (
        "import sys, tests.bench.gpu.__main__\n"
        "lacking = ('vllm', 'uvloop', 'aiohttp', 'tokenizers', 'prometheus_client')\n"
        "print([name for name in lacking if name in sys.modules])"
    )
    printed = subprocess.check_output([sys.executable, "-c", code], cwd=ROOT, text=True)
    assert printed.strip() == "[]"
