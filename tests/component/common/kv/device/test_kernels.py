"""The kernels copy and sum up what the loop in host memory does, vLLM's kernel writes what they
read, and GPUs can run them."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

PACKAGE = "tests.component.common.kv.device"
ROOT = Path(__file__).parents[5]


@pytest.mark.parametrize(
    ("program", "checks"),
    [("interpreted_kernels", 9), ("interpreted_pages", 2), ("compiled_kernels", 2)],
)
def test_the_kernels_are_right(program: str, checks: int) -> None:
    ran = subprocess.run(
        [sys.executable, "-m", f"{PACKAGE}.{program}"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout.count("right: ") == checks
