"""`baton bench` as people start it, against real daemons with simulated engines."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.fleet.running import Fleet, wait_until

TRACE = """\
{"timestamp": 0, "input_length": 1100, "output_length": 12, "hash_ids": [0, 1, 2]}
{"timestamp": 400, "input_length": 1300, "output_length": 3, "hash_ids": [0, 1, 3]}
{"timestamp": 400, "input_length": oops
{"timestamp": 900, "input_length": 40, "output_length": 30, "hash_ids": [4]}
{"timestamp": 1500, "input_length": 900000, "output_length": 1}
"""


def bench(*arguments: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "services.cli", "bench", *arguments]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def told(path: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(path.read_bytes())
    return found


def test_a_trace_is_replayed_and_what_could_not_be_is_named(
    sim_fleet: Fleet, tmp_path: Path
) -> None:
    trace, to_json, page = tmp_path / "t.jsonl", tmp_path / "r.json", tmp_path / "r.html"
    trace.write_text(TRACE)
    run = bench(
        *("--url", sim_fleet.url, "--trace", str(trace), "--speed", "2", "--quiet"),
        *("--run-dir", str(sim_fleet.run_dir), "--slo", "ttft=20000,itl=2000"),
        *("--json", str(to_json), "--html", str(page), "--api-key", "sk-secret"),
    )
    out, err = run.communicate(timeout=60)
    assert run.returncode == 0, err + out
    result = told(to_json)
    every = result["all"]
    assert (every["requests"], every["ok"], every["attainment"]) == (3, 3, 1.0)
    assert (every["usage_wrong"], every["prompt_wrong"]) == (0, 0)
    assert [point[1] for point in result["points"]] == [1100, 1300, 40]
    assert (result["workload"]["bad_rows"], result["workload"]["skipped"]) == (1, 1)
    assert f"{trace}:3: " in out
    assert {"queue", "prefill", "kv transfer", "decode"} <= set(result["phases"])
    assert every["server_first_ms"]["count"] == 3
    html = page.read_text()
    assert "data:image/png;base64," in html
    assert re.search(r"\d+ cores of .*baton-serve", html)
    assert "sk-secret" not in html + to_json.read_text() + out


def test_ctrl_c_keeps_what_was_measured(sim_fleet: Fleet, tmp_path: Path) -> None:
    to_json = tmp_path / "r.json"
    run = bench(
        *("--url", sim_fleet.url, "--concurrency", "2", "--prompt", "50", "--output", "20"),
        *("--seconds", "600", "--json", str(to_json), "--quiet"),
    )
    before = sim_fleet.ctl("status")["totals"]["ended"]
    wait_until("ten answers", lambda: sim_fleet.ctl("status")["totals"]["ended"] >= before + 10, 60)
    run.send_signal(signal.SIGINT)
    out, err = run.communicate(timeout=30)
    assert run.returncode == 1, err
    assert out.startswith("PARTIAL: stopped by Ctrl-C")
    result = told(to_json)
    assert result["partial"]
    assert result["all"]["ok"] >= 9
    assert result["all"]["failed"] == 0
    assert result["all"]["unfinished"] <= 2


def test_nobody_there_and_nothing_to_send(tmp_path: Path) -> None:
    run = bench("--url", "http://127.0.0.1:9/v1")
    out, err = run.communicate(timeout=30)
    assert (run.returncode, out) == (3, "")
    assert err.startswith("baton bench: nobody answers at http://127.0.0.1:9: ")


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        (("--trace", "no.jsonl"), "no.jsonl: cannot be read"),
        (("--slo", "ttft=fast"), "'ttft=fast' is not ttft=MS"),
    ],
)
def test_a_command_line_that_cannot_be_used(
    sim_fleet: Fleet, arguments: tuple[str, ...], why: str
) -> None:
    run = bench("--url", sim_fleet.url, *arguments)
    _, err = run.communicate(timeout=30)
    assert run.returncode == 2
    assert why in err
