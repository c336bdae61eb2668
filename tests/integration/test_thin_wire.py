"""Compression that measures its link, over a wire that really is thin."""

from __future__ import annotations

import json
import re
import subprocess

import pytest

from tests.wire import ROOT, over, unavailable

GBITS = 1
MEGABYTES_S = GBITS * 1000 / 8


def test_auto_measures_a_thin_wire_and_is_faster_over_it_compressed() -> None:
    if why := unavailable():
        pytest.skip(why)
    run = over(GBITS, "tests.integration.thin_wire", "4")
    ended = subprocess.run(run, check=False, cwd=ROOT, capture_output=True, text=True, timeout=50)
    assert ended.returncode == 0, ended.stderr
    first, *later = [json.loads(line) for line in ended.stdout.splitlines()]
    assert [handoff["error"] for handoff in (first, *later)] == [""] * 4
    assert first["compression"] == "", "the link is not measured yet"
    assert {handoff["compression"] for handoff in later} == {"fp8"}
    rate = re.search(r"the link moves (\d+) MB/s", later[0]["choice"])
    assert rate
    assert MEGABYTES_S / 2 < int(rate[1]) < MEGABYTES_S * 1.1
    assert max(handoff["seconds"] for handoff in later) < first["seconds"]
