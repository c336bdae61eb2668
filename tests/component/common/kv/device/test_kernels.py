"""The kernel copies and sums up what the loop in host memory does."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

PROGRAM = "tests.component.common.kv.device.interpreted_kernels"
ROOT = Path(__file__).parents[5]


def test_it_copies_and_sums_as_host_memory_does() -> None:
    ran = subprocess.run(
        [sys.executable, "-m", PROGRAM], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout.count("right: ") == 5
