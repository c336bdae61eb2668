"""What `baton up` says when it cannot: one clear line, no process left, no traceback."""

import socket
import subprocess
import sys
from pathlib import Path

import pytest

from services.cli import main
from tests.fleet.running import Fleet


def up(run_dir: Path, *flags: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "services.cli", "up", "--engine", "sim"]
    command += ["--run-dir", str(run_dir), *flags]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)


def test_a_port_in_use_names_the_flag(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        done = up(tmp_path, "--port", str(port))
    assert done.returncode == 2
    assert f"127.0.0.1:{port}" in done.stderr
    assert "--port" in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1


@pytest.mark.parametrize(
    ("flags", "says"),
    [
        (("--model", "/no/such/folder"), "no model at '/no/such/folder'"),
        (("--model", "someone/some-model"), "hf download someone/some-model"),
        (("--decode", "0"), "at least one decode worker"),
        (("--prefill", "-1"), "cannot be negative"),
        (("--mode", "replicated", "--prefill", "1"), "has no prefill workers; use --decode"),
        (("--mode", "single", "--decode", "2"), "use --mode replicated for more"),
        (("--port", "99999"), "between 1 and 65535"),
        (("--config", "/no/such/file.toml"), "cannot be read"),
        (("--decode", "60", "--engine", "vllm"), "GiB is free"),
    ],
)
def test_bad_flags_are_one_clear_line(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], flags: tuple[str, ...], says: str
) -> None:
    """In this process; the refusals above and below are of processes of their own."""
    status = main(["up", "--engine", "sim", "--run-dir", str(tmp_path), *flags])
    stderr = capfd.readouterr().err
    assert status == 2
    assert says in stderr
    assert len(stderr.strip().splitlines()) == 1


def test_a_second_fleet_in_the_same_run_dir_is_refused(sim_fleet: Fleet) -> None:
    done = up(sim_fleet.run_dir)
    assert done.returncode == 2
    assert f"pid {sim_fleet.process.pid}" in done.stderr


def test_help_teaches() -> None:
    command = [sys.executable, "-m", "services.cli"]
    for arguments in (["--help"], ["up", "--help"], ["ctl", "--help"]):
        done = subprocess.run([*command, *arguments], capture_output=True, text=True, check=True)
        assert "baton " in done.stdout
    assert (
        "examples:"
        in subprocess.run(
            [*command, "up", "--help"], capture_output=True, text=True, check=True
        ).stdout
    )


def test_check_and_config_explain_a_fleet_file(tmp_path: Path) -> None:
    path = tmp_path / "fleet.toml"
    path.write_text("[gateway]\nport = 8123\n[decode.d0]\n")
    command = [sys.executable, "-m", "services.cli"]
    good = subprocess.run(
        [*command, "check", "--config", str(path)], capture_output=True, text=True, check=False
    )
    assert good.returncode == 0
    assert "1 decode" in good.stdout
    shown = subprocess.run(
        [*command, "config", "--config", str(path)], capture_output=True, text=True, check=True
    ).stdout
    assert "gateway.port = 8123  # file" in shown
    assert "router.max_queue = 1024  # default" in shown
    path.write_text("[gateway]\nprot = 1\n")
    bad = subprocess.run(
        [*command, "check", "--config", str(path)], capture_output=True, text=True, check=False
    )
    assert bad.returncode == 2
    assert "unknown key 'prot'" in bad.stderr
