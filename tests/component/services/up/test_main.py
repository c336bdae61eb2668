"""A run directory that another user made beforehand, and what else cannot be used: one line, and
nothing of it is read or overwritten."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from services.cli import main
from tests.rigs.other_user import OTHER_USER, needs_root


@pytest.fixture
def victim(tmp_path: Path) -> Path:
    path = tmp_path / "victim"
    path.write_text("precious")
    return path


@pytest.fixture
def trap(tmp_path: Path, victim: Path) -> Path:
    """Another user's folder, with a link where `baton up` writes its lock, and a fleet file whose
    alert command would show that it ran."""
    folder = tmp_path / "trap"
    folder.mkdir(mode=0o750)
    (folder / "up.lock").symlink_to(victim)
    fleet = folder / "fleet.toml"
    fleet.write_text(
        f'[fleet]\nrun_dir = "{folder}"\n[decode.d0]\n'
        f'[health]\nalert_command = "touch {folder}/ran"\n'
    )
    for path in (fleet, folder):
        os.chown(path, OTHER_USER, OTHER_USER)
    return folder


def refusal(arguments: list[str], capfd: pytest.CaptureFixture[str]) -> str:
    status = main(arguments)
    printed = capfd.readouterr().err
    assert status == 2, printed
    assert printed.count("\n") == 1, printed
    return printed


@needs_root
def test_a_run_directory_of_another_user_is_refused_and_the_victim_is_whole(
    trap: Path, victim: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    printed = refusal(["up", "--engine", "sim", "--run-dir", str(trap)], capfd)
    assert f"belongs to user {OTHER_USER}" in printed
    assert "--run-dir" in printed
    assert victim.read_text() == "precious"
    assert sorted(path.name for path in trap.iterdir()) == ["fleet.toml", "up.lock"]


@needs_root
def test_a_fleet_file_of_another_user_is_not_obeyed(
    trap: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    for command in ("health", "check"):
        printed = refusal([command, "--config", str(trap / "fleet.toml")], capfd)
        assert f"belongs to user {OTHER_USER}; copy it to a folder of your own" in printed


@needs_root
def test_a_daemon_does_not_use_a_run_directory_of_another_user(
    trap: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    ours = tmp_path / "fleet.toml"
    ours.write_text(f'[fleet]\nrun_dir = "{trap}"\n[decode.d0]\n')
    printed = refusal(["router", "--config", str(ours)], capfd)
    assert f"fleet.run_dir: {trap}: it belongs to user {OTHER_USER}" in printed


def test_a_lock_that_is_a_link_overwrites_nothing(
    tmp_path: Path, victim: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "run").mkdir(mode=0o750)
    (tmp_path / "run" / "up.lock").symlink_to(victim)
    printed = refusal(["up", "--engine", "sim", "--run-dir", str(tmp_path / "run")], capfd)
    assert "up.lock is a symbolic link; remove it" in printed
    assert victim.read_text() == "precious"


def test_a_run_directory_too_long_for_its_sockets_is_refused_before_it_is_made(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / ("x" * (107 - len(str(tmp_path)) - len("/gateway.g0.metrics.sock")))
    printed = refusal(["up", "--engine", "sim", "--run-dir", str(folder)], capfd)
    assert "choose a shorter run_dir" in printed
    assert not folder.exists()
    fleet = tmp_path / "fleet.toml"
    fleet.write_text(f'[fleet]\nrun_dir = "{folder}"\n[decode.d0]\n')
    for command in (["up"], ["check"], ["router"]):
        assert "choose a shorter run_dir" in refusal([*command, "--config", str(fleet)], capfd)


def test_a_home_that_cannot_be_written_is_one_line_that_names_the_fix(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    for variable in ("XDG_CACHE_HOME", "XDG_RUNTIME_DIR", "XDG_STATE_HOME", "BATON_RUN_DIR"):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setenv("HOME", "/dev/null/home")
    printed = refusal(["up", "--engine", "sim"], capfd)
    assert "--run-dir" in printed
    assert "cannot be used: Not a directory; or choose another folder" in printed
    printed = refusal(["up", "--engine", "sim", "--run-dir", str(tmp_path / "run")], capfd)
    assert "set XDG_CACHE_HOME to a folder that this user can write" in printed
    assert main(["doctor"]) == 1
    printed = capfd.readouterr().out
    assert "FAIL  run_dir" in printed
    assert "set XDG_CACHE_HOME" in printed
