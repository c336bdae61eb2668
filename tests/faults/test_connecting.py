"""A worker outlives the processes that are killed while they connect to it."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

pytestmark = [pytest.mark.long, pytest.mark.timeout(120)]


def test_killed_while_they_connect_they_leave_nothing_and_break_nothing() -> None:
    run = subprocess.run(
        [sys.executable, "-m", "tests.faults.connecting"],
        env={**os.environ, "UCX_LOG_LEVEL": "fatal", "UCXX_LOG_LEVEL": "FATAL"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert run.returncode == 0, run.stderr[-2000:]
    accepted, _, left = run.stdout.strip().partition(" accepted, ")
    assert left == "0 links and 0 pending requests left"
    assert int(accepted) > 0
