"""Results of three tools in one table.

vLLM's files are true ones of 0.32, with and without --save-detailed, from a fleet of simulated
engines (its path to the tokenizer and the texts are taken out). AIPerf's follows its documentation
of schema 1.5: it was not run.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest

from common.errors import ConfigError
from loadtest.bench.driver import LoadPlan, LoadRun
from loadtest.bench.prompts import Maker
from loadtest.bench.result import Workload, result
from loadtest.bench.sample import Sample
from loadtest.capacity.report import Slo
from loadtest.comparison.command import main
from loadtest.comparison.load_summary import Latency
from loadtest.comparison.reader import read
from loadtest.provenance import Provenance

HERE = Path(__file__).parent
PLAIN, DETAILED = HERE / "vllm_plain.json", HERE / "vllm_detailed.json"
AIPERF = {
    "schema_version": "1.5",
    "aiperf_version": "0.13.0",
    "start_time": "2026-11-21T10:00:00Z",
    "was_cancelled": False,
    "run_info": {"cli_command": "aiperf profile --model m --url u --streaming"},
    "request_latency": {
        "unit": "ms", "avg": 2620.71, "min": 2145.06, "max": 3411.1, "p50": 2568.73,
        "p99": 3371.24, "std": 297.93, "count": 20, "sum": 52414.29,
    },
    "time_to_first_token": {"unit": "sec", "avg": 0.1, "p50": 0.09, "p90": 0.2, "p99": 0.3},
    "inter_token_latency": {"unit": "ms", "avg": 9.5, "p50": 9.0},
    "request_throughput": {"unit": "requests/sec", "avg": 1.45},
    "output_token_throughput": {"unit": "tokens/sec", "avg": 290.0},
    "request_count": {"unit": "requests", "avg": 20.0},
    "error_request_count": {"unit": "requests", "avg": 2.0},
    "benchmark_duration": {"unit": "sec", "avg": 13.8},
}  # fmt: skip


def told(path: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(path.read_bytes())
    return found


def written(tmp_path: Path, fields: object) -> Path:
    path = tmp_path / "result.json"
    path.write_text(json.dumps(fields))
    return path


def ours(tmp_path: Path) -> Path:
    load_run = LoadRun(LoadPlan("http://h", Maker("m")), ())
    load_run.samples.append(
        Sample("fixed", 10, 3, 0.0, sent=0.0, first=0.1, last=0.3, done=0.3, chunks=3)
    )
    machine = Provenance(
        when="now", host="h", cpu="c", cores=2, memory_gib=1.0, gpus=[], system="s", python="3",
        versions={}, commit="", load=0.5,
    )  # fmt: skip
    work = Workload(
        command="baton bench", source="10 tokens in, 3 out", arrivals="poisson", url="http://h",
        model="m", api="completions", seed=1, slo=Slo(),
    )  # fmt: skip
    path = tmp_path / "ours.json"
    path.write_bytes(msgspec.json.encode(result(load_run, work, machine, {})))
    return path


def test_vllms_summary_is_taken_as_it_stands() -> None:
    summary, file = read(PLAIN), told(PLAIN)
    assert (summary.tool, summary.ok, summary.failed) == ("vllm bench serve", 8, 0)
    assert summary.ttft == Latency(
        file["median_ttft_ms"], None, file["p99_ttft_ms"], None, file["mean_ttft_ms"]
    )
    assert summary.tpot.p50 == file["median_tpot_ms"]
    assert summary.e2e.p50 == pytest.approx(sorted(file["latencies"])[3] * 1000)
    assert summary.output_tokens_per_s == file["output_throughput"]
    assert "8.0 requests/s; baton-tiny by openai" in summary.load


def test_vllms_details_tell_more() -> None:
    summary, file = read(DETAILED), told(DETAILED)
    assert summary.ttft.max == pytest.approx(max(file["ttfts"]) * 1000)
    assert summary.ttft.p90 is not None
    assert (summary.ttft.p50, summary.ttft.mean) == (file["median_ttft_ms"], file["mean_ttft_ms"])


def test_requests_that_failed_are_no_latencies(tmp_path: Path) -> None:
    file = told(DETAILED)
    file["ttfts"][0], file["errors"][0], file["failed"], file["completed"] = 99.0, "cut", 1, 7
    assert (read(written(tmp_path, file)).ttft.max or 0) < 99_000
    del file["errors"], file["ttfts"]
    summary = read(written(tmp_path, file))
    assert (summary.ok, summary.failed, summary.e2e) == (7, 1, Latency())


def test_aiperfs_blocks_have_units(tmp_path: Path) -> None:
    summary = read(written(tmp_path, AIPERF))
    assert (summary.tool, summary.ok, summary.failed, summary.seconds) == (
        "aiperf 0.13.0",
        20,
        2,
        13.8,
    )
    assert summary.ttft == pytest.approx(Latency(90.0, 200.0, 300.0, None, 100.0))
    assert summary.e2e == Latency(2568.73, None, 3371.24, 3411.1, 2620.71)
    assert summary.tpot.p50 == 9.0
    assert summary.load == "aiperf profile --model m --url u --streaming"


@pytest.mark.parametrize(
    ("fields", "why"),
    [
        ({"hello": 1}, "is none of these: baton bench --json, vllm bench serve"),
        ([], "is not one JSON object"),
        (AIPERF | {"schema_version": "2.0"}, "schema 2.0, 1.x is read here"),
        (AIPERF | {"request_latency": {"unit": "furlongs", "avg": 1.0}}, "'furlongs' is no unit"),
        (AIPERF | {"request_count": 3}, r"\$.request_count"),
        ({"format": "baton-bench-1"}, "is not as baton bench --json writes it: .*provenance"),
    ],
)
def test_a_file_that_cannot_be_used_says_why(tmp_path: Path, fields: object, why: str) -> None:
    with pytest.raises(ConfigError, match=why):
        read(written(tmp_path, fields))


def test_all_side_by_side(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    html = tmp_path / "all.html"
    files = [ours(tmp_path), DETAILED, written(tmp_path, AIPERF)]
    assert main([*map(str, files), "--html", str(html)]) == 0
    out = capsys.readouterr().out
    ttft = out.index("TTFT, ms")
    rows = [line.split() for line in out[ttft:].splitlines()[1:4]]
    assert [row[0] for row in rows] == ["ours", "vllm_detailed", "result"]
    assert (rows[0][1], rows[2][1:5]) == ("100.0", ["90.0", "200.0", "300.0", "-"])
    page = html.read_text()
    assert "data:image/png;base64," in page
    assert "vllm bench serve" in page
    assert main(["none.json"]) == 2
    assert "none.json: cannot be read" in capsys.readouterr().err
