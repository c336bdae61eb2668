"""Requests made from the served OpenAPI document, right and wrong ones: none may fail in the
server. The fleet's engines are simulated; vLLM's request models and renderers are real."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.rigs.fleet import Fleet, fleet

pytestmark = pytest.mark.long

CASES_MIN = 1_000
EXAMPLES = 150
"""For each of the operations."""
QUICK = {
    "BATON_GATEWAY__TEXT": "vllm",
    "BATON_GATEWAY__DEFAULT_MAX_TOKENS": "4",
    "BATON_MODEL__MAX_MODEL_LEN": "64",
    "BATON_ENGINE__SIM__DECODE_STEP_MS": "0",
}


@pytest.fixture
def quick_fleet() -> Iterator[Fleet]:
    flags = ("--engine", "sim", "--prefill", "1", "--decode", "1")
    with fleet(*flags, env=QUICK) as running:
        yield running.wait_ready()


@pytest.mark.timeout(600)
def test_a_thousand_requests_from_the_document_meet_no_server_error(quick_fleet: Fleet) -> None:
    command = [str(Path(sys.executable).parent / "schemathesis"), "run"]
    command += [f"{quick_fleet.url}/openapi.json", "--checks", "not_a_server_error"]
    command += ["--phases", "fuzzing", "--max-examples", str(EXAMPLES), "--mode", "all"]
    command += ["--generation-database", "none", "--seed", "1", "--request-timeout", "30"]
    command += ["--suppress-health-check", "all"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=540, check=False)
    said = done.stdout + done.stderr
    assert done.returncode == 0, said[-6000:]
    counted = re.search(r"(\d[\d,]*) generated", said)
    assert counted, said[-3000:]
    assert int(counted[1].replace(",", "")) >= CASES_MIN
    assert not quick_fleet.ctl("requests")
