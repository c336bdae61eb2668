"""The engine process lives and dies with its daemon; what cannot start says why in one line."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from common.config import from_mapping
from common.engine.open import open_engine
from common.errors import BatonError, ConfigError
from common.messages import Role
from tests.e2e.engine.pair import ENGINE, make_config

pytestmark = pytest.mark.timeout(180)
ROOT = Path(__file__).parents[3]
IDLE_PERCENT_MAX = 5.0


class Host:
    """`host.py` in a process group of its own."""

    def __init__(self, run_dir: Path) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-m", "tests.e2e.engine.host", str(run_dir)],
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        _, pid, core = self.line("pids").split()
        self.pid, self.core = int(pid), psutil.Process(int(core))
        self.line("served")

    def serve(self) -> None:
        """One more request, to its end."""
        assert self.process.stdin is not None
        self.process.stdin.write("\n")
        self.process.stdin.flush()
        self.line("served")

    def cpu_seconds(self) -> float:
        """Of the daemon and its engine so far."""
        return sum(sum(p.cpu_times()[:2]) for p in (psutil.Process(self.pid), self.core))

    def line(self, start: str) -> str:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            if line.startswith(start):
                return line.strip()
        raise AssertionError(f"ended without {start!r}")


@pytest.fixture(scope="module")
def hosts() -> Iterator[list[Host]]:
    started: list[Host] = []
    yield started
    for host in started:
        host.process.kill()
        host.process.wait()


@pytest.fixture
def host(hosts: list[Host], tmp_path: Path) -> Host:
    """One that no test has ended."""
    alive = [host for host in hosts if host.process.poll() is None]
    if not alive:
        alive.append(Host(tmp_path))
        hosts += alive
    return alive[0]


def test_ctrl_c_is_the_daemons_to_handle(host: Host) -> None:
    host.core.send_signal(signal.SIGINT)
    host.serve()
    assert host.core.is_running()
    assert host.core.status() != psutil.STATUS_ZOMBIE


def test_idling_is_cheap(host: Host, hosts: list[Host], tmp_path: Path) -> None:
    """Measured while another engine starts, which takes seconds."""
    before, start = host.cpu_seconds(), time.monotonic()
    hosts.append(Host(tmp_path))
    percent = 100 * (host.cpu_seconds() - before) / (time.monotonic() - start)
    assert percent < IDLE_PERCENT_MAX, f"{percent} % of a core while idle"


def test_killing_the_daemon_takes_the_engine_along(host: Host) -> None:
    os.kill(host.pid, signal.SIGKILL)
    host.process.wait(10)
    _, alive = psutil.wait_procs([host.core], timeout=10)
    assert not alive


def test_killing_the_engine_is_noticed_at_once(host: Host) -> None:
    host.core.kill()
    start = time.monotonic()
    assert host.line("failed") == "failed engine_failed"
    assert time.monotonic() - start < 2.0
    assert host.line("refused") == "refused engine_failed"
    assert host.line("closed")
    assert host.process.wait(60) == 0


@pytest.mark.parametrize(
    ("model", "engine", "says"),
    [
        ({"path": "/nowhere/at/all"}, {}, "no model at"),
        ({}, {"kv_cache_mib": 1}, "cannot hold one request"),
        ({}, {"kv_cache_mib": 1 << 24}, "free"),
        ({}, {"block_tokens": 48}, "no multiple of 32"),
        ({"dtype": "float32", "max_model_len": 1 << 24}, {}, "max_model_len"),
    ],
)
def test_what_cannot_start_says_why_in_one_line(
    tmp_path: Path, model: dict[str, Any], engine: dict[str, Any], says: str
) -> None:
    config = from_mapping(
        {
            "fleet": {"run_dir": str(tmp_path)},
            "model": {"path": "baton-tiny", **model},
            "decode": {"d0": {"engine": {**ENGINE, **engine}}},
        }
    )
    with pytest.raises(ConfigError) as refused:
        open_engine(config, Role.DECODE, "d0", "i")
    assert says in refused.value.message
    assert "\n" not in refused.value.message


def test_what_fails_in_the_engines_own_process_is_told_in_its_words(tmp_path: Path) -> None:
    config = make_config(tmp_path, transports="carrier_pigeon")
    with pytest.raises(BatonError, match="carrier_pigeon") as refused:
        open_engine(config, Role.DECODE, "d0", "i")
    assert "\n" not in refused.value.message
