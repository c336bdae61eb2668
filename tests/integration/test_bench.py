"""`baton bench` as people start it, against real daemons with simulated engines."""

from __future__ import annotations

import json
import re
import signal
import subprocess
from pathlib import Path
from typing import Any

import pytest

from loadtest.capacity.profile import load as load_profile
from tests.rigs.fleet import Fleet, wait_until
from tests.rigs.processes import BATON

pytestmark = pytest.mark.timeout(150)
DEADLINE = 120.0
"""Several processes, one of them with plots, start for each test."""

TRACE = """\
{"timestamp": 0, "input_length": 1100, "output_length": 12, "hash_ids": [0, 1, 2]}
{"timestamp": 400, "input_length": 1300, "output_length": 3, "hash_ids": [0, 1, 3]}
{"timestamp": 400, "input_length": oops
{"timestamp": 900, "input_length": 40, "output_length": 30, "hash_ids": [4]}
{"timestamp": 1500, "input_length": 900000, "output_length": 1}
"""


def baton(*arguments: str) -> subprocess.Popen[str]:
    pipe = subprocess.PIPE
    return subprocess.Popen([*BATON, *arguments], stdout=pipe, stderr=pipe, text=True)


def bench(*arguments: str) -> subprocess.Popen[str]:
    return baton("bench", *arguments)


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
    out, err = run.communicate(timeout=DEADLINE)
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
    out, err = run.communicate(timeout=DEADLINE)
    assert run.returncode == 1, err
    assert out.startswith("PARTIAL: stopped by Ctrl-C")
    result = told(to_json)
    assert result["partial"]
    assert result["all"]["ok"] >= 9
    assert result["all"]["failed"] == 0
    assert result["all"]["unfinished"] <= 2


def test_nobody_there_and_nothing_to_send(tmp_path: Path) -> None:
    run = bench("--url", "http://127.0.0.1:9/v1")
    out, err = run.communicate(timeout=DEADLINE)
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
    _, err = run.communicate(timeout=DEADLINE)
    assert run.returncode == 2
    assert why in err


def test_a_profile_of_live_workers_is_one_that_plans_are_made_of(
    sim_fleet: Fleet, tmp_path: Path
) -> None:
    path = tmp_path / "profile.toml"
    run = baton(
        *("profile", "--url", sim_fleet.url, "--run-dir", str(sim_fleet.run_dir)),
        *("--prompt-max", "1000", "--batch-max", "2", "--repeats", "1", "--out", str(path)),
    )
    out, err = run.communicate(timeout=DEADLINE)
    assert run.returncode == 0, err + out
    profile = load_profile(path)
    assert [tokens for tokens, _ in profile.prefill_curve] == [64, 128, 256, 512, 1000]
    assert [batch for batch, _ in profile.decode_curve] == [1, 2]
    capacity = sim_fleet.ctl("workers", "decode")[0]
    assert profile.kv_blocks == capacity["kv_blocks"]
    assert profile.kv_bytes_per_token * profile.block_tokens == capacity["kv_block_bytes"]
    assert "2 prefill, 2 decode" in profile.about["workers"]
    assert not profile.prefix_cache, "the simulated engine has none"


def test_crossover_compares_what_it_is_given(sim_fleet: Fleet, tmp_path: Path) -> None:
    """Twice the same fleet: whatever the machine did, it shows in both."""
    to_json, to_png = tmp_path / "x.json", tmp_path / "x.png"
    run = bench(
        *("crossover", "--endpoint", f"replicated={sim_fleet.url}"),
        *("--endpoint", f"disaggregated={sim_fleet.url}/v1", "--json", str(to_json)),
        *("--concurrency", "1,2", "--repeats", "2", "--requests", "2"),
        *("--prompt", "60", "--output", "4", "--png", str(to_png)),
    )
    out, err = run.communicate(timeout=DEADLINE)
    assert run.returncode == 0, err + out
    result = told(to_json)
    cells = [(c["repeat"], c["concurrency"], c["fleet"]) for c in result["cells"]]
    assert cells[:2] == [(0, 1, "replicated"), (0, 1, "disaggregated")]
    assert cells[4:6] == [(1, 1, "disaggregated"), (1, 1, "replicated")], "turned about"
    assert [c for c, _ in result["ratios"]["60 in, 4 out"]["tokens"]] == [1, 2]
    assert result["sentences"]["60 in, 4 out"] in out
    assert to_png.read_bytes().startswith(b"\x89PNG")


def test_peers_are_scored_side_by_side(sim_fleet: Fleet, tmp_path: Path) -> None:
    to_json, fault = tmp_path / "p.json", tmp_path / "happened"
    pid = sim_fleet.process.pid
    run = bench(
        *("peers", "--endpoint", f"a={sim_fleet.url}", "--endpoint", f"b={sim_fleet.url}"),
        *("--pid", f"a={pid}", "--fault", f"b=touch {fault}", "--json", str(to_json)),
        *("--rate", "4", "--seconds", "2", "--repeats", "1", "--scale", "0.1"),
    )
    out, err = run.communicate(timeout=DEADLINE)
    assert run.returncode == 0, err + out
    first, second = told(to_json)["rounds"]
    assert (first["peer"], second["peer"]) == ("a", "b")
    assert first["figures"]["ok"] == first["figures"]["requests"] > 0
    assert first["cpu_us_per_token"] > 0
    assert second["cpu_us_per_token"] is None
    assert fault.exists()
    assert first["recovery_s"] is None
    assert second["recovery_s"] is None or second["recovery_s"] > 0
    assert second["fault_failed"] == ""
    assert out.startswith("peer ")


def test_a_fault_that_did_not_happen_is_told(sim_fleet: Fleet) -> None:
    run = bench(
        *("peers", "--endpoint", f"a={sim_fleet.url}", "--endpoint", f"b={sim_fleet.url}"),
        *("--fault", "a=true; echo no such aim >&2; exit 3", "--fault", "b=true"),
        *("--rate", "4", "--seconds", "1", "--repeats", "1", "--scale", "0.1"),
    )
    out, err = run.communicate(timeout=DEADLINE)
    assert run.returncode == 1, err + out
    assert "1 x its fault ended with status 3: no such aim" in out
