"""Fleets of this machine that a measurement starts and stops: `baton up` as a child process."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from loadtest.ports import free_port

READY = "Ready in "
STOP_SECONDS = 60.0
SIM = {
    "BATON_MODEL__MAX_MODEL_LEN": "131072",
    "BATON_ENGINE__BLOCK_TOKENS": "512",
    "BATON_ENGINE__SIM__KV_BLOCK_BYTES": "4096",
}
"""Simulated engines hold any prompt of a trace; few, small blocks keep their bytes cheap."""


class LocalFleet(NamedTuple):
    url: str
    run_dir: Path


class FleetDownError(Exception):
    """A fleet did not start; the text ends with its last output."""


@contextmanager
def fleet(flags: Sequence[str], environ: Mapping[str, str] | None = None) -> Iterator[LocalFleet]:
    """`flags` of `baton up`. Ports and run directory are chosen here; what the user set in the
    environment stands. Raises FleetDownError."""
    run_dir = Path(tempfile.mkdtemp(prefix="baton-"))
    port, health_port = free_port(), free_port()
    command = [sys.executable, "-m", "services.cli", "up", "--run-dir", str(run_dir)]
    command += ["--port", str(port), "--health-port", str(health_port), *flags]
    process = subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env={**(environ or {}), **os.environ, "BATON_SUPERVISOR_PID": str(os.getpid())},
        start_new_session=True,
    )
    try:
        _wait_ready(process)
        yield LocalFleet(f"http://127.0.0.1:{port}", run_dir)
    finally:
        _stop(process)
        shutil.rmtree(run_dir, ignore_errors=True)


def _wait_ready(process: subprocess.Popen[str]) -> None:
    output = []
    assert process.stdout is not None
    for line in process.stdout:
        output.append(line.rstrip())
        if line.startswith(READY):
            return
    raise FleetDownError("the fleet did not come up: " + " | ".join(output[-5:]))


def _stop(process: subprocess.Popen[str]) -> None:
    """As Ctrl-C does; its output is read to the end, so that it never waits for us."""
    if process.poll() is None:
        process.send_signal(signal.SIGINT)
    try:
        process.communicate(timeout=STOP_SECONDS)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
