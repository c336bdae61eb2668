"""`baton ctl`: which router is asked, what is printed, and the exit status: the tests that start
something."""

from __future__ import annotations

from pathlib import Path

import pytest

from services.ctl import main as ctl


def test_a_silent_router_is_exit_3_too(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A socket file that nobody listens on, as a killed router leaves it."""
    (tmp_path / "admin.sock").touch()
    assert ctl.main(["status", "--run-dir", str(tmp_path), "--timeout", "0.2"]) == 3
    assert "within 0.2 s" in capsys.readouterr().err
