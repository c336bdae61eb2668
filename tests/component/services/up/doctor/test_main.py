"""`baton doctor` as a person and as a script sees it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from services.cli import main


def test_a_broken_fleet_file_is_a_failure_and_exit_1(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "fleet.toml"
    file.write_text("[gateway]\nprot = 1\n")
    assert main(["doctor", "--config", str(file)]) == 1
    printed = capsys.readouterr().out
    assert "FAIL  config" in printed
    assert "unknown key 'prot'" in printed
    assert printed.splitlines()[-1].endswith("1 failures")


def test_workers_with_different_data_planes_are_told_apart_in_json(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "fleet.toml"
    file.write_text(
        f'[fleet]\nrun_dir = "{tmp_path}/run"\n[gateway]\nport = 0\n[health]\nport = 0\n'
        '[engine]\nkind = "sim"\n[prefill.p0]\n[decode.d0]\n[decode.d1.kv]\ntransports = "tcp"\n'
    )
    assert main(["doctor", "--config", str(file), "--json"]) == 0
    found = {finding["name"]: finding for finding in json.loads(capsys.readouterr().out)}
    assert "sysv" in found["ucx inside (p0, d0)"]["saw"]
    assert "is read where it was staged" in found["ucx inside (p0, d0)"]["saw"]
    assert found["ucx inside (d1)"]["saw"].startswith("KV between workers of this host goes over t")
