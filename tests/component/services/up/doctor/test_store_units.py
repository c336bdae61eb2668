"""What systemd says that a unit may have of memory."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from services.up.doctor.store import memory_max_of


@pytest.mark.parametrize(
    ("says", "limit"), [("echo 1048576", 1 << 20), ("echo infinity", None), ("exit 1", None)]
)
def test_a_limit_is_a_number_and_all_else_is_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, says: str, limit: int | None
) -> None:
    systemctl = tmp_path / "systemctl"
    systemctl.write_text(f'#!/bin/sh\n[ "$4" = baton-pool@s0.service ] || exit 9\n{says}\n')
    systemctl.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    assert memory_max_of("baton-pool@s0.service") == limit


def test_a_host_without_systemd_has_no_limits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert memory_max_of("baton-pool@s0.service") is None
