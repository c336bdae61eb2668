"""What the timeline says of a request against what its client was told, on real daemons."""

from __future__ import annotations

import http.client
import json
import re
from typing import Any

from tests.rigs.fleet import Fleet, wait_until

MODEL = "baton-tiny"
PROMPT = "The quick brown fox jumps over the lazy dog. " * 60
TRACE = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


def ask(fleet: Fleet, **more: Any) -> tuple[dict[str, Any], dict[str, str]]:
    connection = http.client.HTTPConnection("127.0.0.1", fleet.port, timeout=30)
    body = {"model": MODEL, "prompt": PROMPT, "max_tokens": 100, "ignore_eos": True} | more
    connection.request(
        "POST",
        "/v1/completions",
        json.dumps(body),
        {"content-type": "application/json", "traceparent": TRACE, "x-request-id": "mine"},
    )
    answer = connection.getresponse()
    return json.loads(answer.read()), {k.lower(): v for k, v in answer.getheaders()}


def lines(fleet: Fleet) -> list[dict[str, Any]]:
    path = fleet.run_dir / "r0.timeline.jsonl"
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def test_phases_sum_to_what_the_http_server_measured(sim_fleet: Fleet) -> None:
    answer, headers = ask(sim_fleet)
    request_id = answer["id"].removeprefix("cmpl-")
    told: list[dict[str, Any]] = []

    def written() -> bool:
        told[:] = [line for line in lines(sim_fleet) if line["request_id"] == request_id]
        return bool(told)

    wait_until("its line is written", written, 10.0)
    (line,) = told
    measured = re.match(r"total;dur=([\d.]+)", headers["server-timing"])
    assert measured is not None
    total = float(measured[1])
    assert abs(sum(phase["ms"] for phase in line["phases"]) - total) <= 0.01 * total
    phases = [phase["phase"] for phase in line["phases"]]
    assert phases == ["intake", "queue", "prefill", "transfer", "first_token", "decode"]
    assert (line["outcome"], line["completion_tokens"]) == ("ended", 100)
    assert line["traceparent"] == TRACE
    assert "quick brown fox" not in json.dumps(line)
    assert sim_fleet.ctl("explain", request_id)["timeline"]["total_ms"] == line["total_ms"]
    assert request_id in {row["request_id"] for row in sim_fleet.ctl("explain", "--recent")}
