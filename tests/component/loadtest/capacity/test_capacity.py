"""The capacity model against sums that can be done by hand: the tests that start something."""

from __future__ import annotations

from pathlib import Path

import pytest

from loadtest.capacity.__main__ import main
from tests.unit.loadtest.capacity.test_capacity import TRACE


def test_ever_larger_fleets_do_the_same_work(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "t.jsonl"
    path.write_text(TRACE)
    flags = ["--trace", str(path), "--grow", "2,8", "--prefill", "1", "--decode", "3"]
    assert main(flags) == 0
    rows = [line.split() for line in capsys.readouterr().out.splitlines()[2:]]
    assert [row[:5] for row in rows] == [["2", "1", "+", "1", "12"], ["8", "2", "+", "6", "12"]]
    costs = [float(row[5]) for row in rows]
    assert min(costs) > 0
