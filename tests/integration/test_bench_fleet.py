"""A fleet that `baton bench` started for itself."""

from __future__ import annotations

import subprocess
from pathlib import Path

import psutil
import pytest

from tests.rigs.fleet import wait_until
from tests.rigs.processes import BATON


@pytest.mark.timeout(150)
def test_it_does_not_outlive_a_bench_that_is_killed(tmp_path: Path) -> None:
    command = [*BATON, "bench", "--start", "sim", "--quiet", "--seconds", "600"]
    bench = subprocess.Popen(command, cwd=tmp_path)
    try:
        found = psutil.Process(bench.pid)
        wait_until("a fleet", lambda: len(found.children(recursive=True)) >= 6, 60)
        fleet = found.children(recursive=True)
    finally:
        bench.kill()
        bench.wait()
    wait_until("all gone", lambda: not any(_runs(pid) for pid in fleet), 40)


def _runs(process: psutil.Process) -> bool:
    return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
