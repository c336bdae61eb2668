"""`baton doctor` as a person and as a script sees it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from services.cli import main
from services.up import preflight
from services.up.doctor import gpu, ucx
from services.up.doctor.gpu_facts import GpuFacts, read_libraries, read_rdma


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


def gpu_findings(capsys: pytest.CaptureFixture[str], file: Path) -> list[str]:
    main(["doctor", "--config", str(file), "--json"])
    names = [finding["name"] for finding in json.loads(capsys.readouterr().out)]
    return [name for name in names if name.startswith("gpu") and name not in {"gpu", "gpu metrics"}]


def test_only_a_host_with_gpus_is_asked_about_them(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "fleet.toml"
    file.write_text(
        f'[fleet]\nrun_dir = "{tmp_path}/run"\n[gateway]\nport = 0\n[health]\nport = 0\n'
        '[engine]\nkind = "sim"\n[prefill.p0]\n[decode.d0]\n[decode.d1.kv]\ntransports = "tcp"\n'
    )
    read: list[GpuFacts] = []

    def facts() -> GpuFacts:
        libraries, rdma = read_libraries([]), read_rdma(tmp_path)
        read.append(GpuFacts("", (), (), None, None, libraries, rdma))
        return read[-1]

    seen: dict[str, Any] = {"lanes": ["tcp/lo"], "resources": ["tcp/lo"], "loans": False}
    monkeypatch.setattr(gpu, "read", facts)
    monkeypatch.setattr(ucx, "probe", lambda kv: seen)
    assert gpu_findings(capsys, file) == []
    assert read == []
    monkeypatch.setattr(preflight, "find_gpus", lambda: (0,))
    host = ["gpus", "gpu driver"]
    planes = ["gpu transports (p0, d0)", "gpu transports (d1)"]
    assert gpu_findings(capsys, file) == host + planes
    seen = {"error": "UCX did not connect"}
    assert gpu_findings(capsys, file) == host
