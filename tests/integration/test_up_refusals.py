"""What `baton up` says when it cannot: one clear line, no process left, no traceback."""

import socket
import subprocess
from pathlib import Path

import pytest

from loadtest.ports import free_port
from services.cli import main
from tests.rigs.fleet import Fleet
from tests.rigs.processes import baton, said


def up(run_dir: Path, *flags: str) -> subprocess.CompletedProcess[str]:
    return baton("up", "--engine", "sim", "--run-dir", str(run_dir), *flags)


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
    own = [] if "--port" in flags else ["--port", str(free_port())]
    status = main(["up", "--engine", "sim", "--run-dir", str(tmp_path), *own, *flags])
    stderr = capfd.readouterr().err
    assert status == 2
    assert says in stderr
    assert len(stderr.strip().splitlines()) == 1


def test_a_second_fleet_in_the_same_run_dir_is_refused(sim_fleet: Fleet) -> None:
    done = up(sim_fleet.run_dir)
    assert done.returncode == 2
    assert f"pid {sim_fleet.process.pid}" in done.stderr


def test_help_teaches() -> None:
    shown = {words: said(*words.split()) for words in ("--help", "up --help", "ctl --help")}
    assert all("baton " in text for text in shown.values())
    assert "examples:" in shown["up --help"]


def test_check_and_config_explain_a_fleet_file(tmp_path: Path) -> None:
    path = tmp_path / "fleet.toml"
    path.write_text("[gateway]\nport = 8123\n[decode.d0]\n")
    assert "1 decode" in said("check", "--config", str(path))
    shown = said("config", "--config", str(path))
    assert "gateway.port = 8123  # file" in shown
    assert "router.max_queue = 1024  # default" in shown
    path.write_text("[gateway]\nprot = 1\n")
    bad = baton("check", "--config", str(path))
    assert bad.returncode == 2
    assert "unknown key 'prot'" in bad.stderr
