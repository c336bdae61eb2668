"""How a worker is restarted."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from common.errors import ConfigError
from services.rollout.main import restart
from services.router.admin.verb import View
from services.router.admin.verbs import workers
from tests.unit.services.router.rig import standard


@pytest.mark.parametrize(
    ("configured", "started_as"), [("", "decode"), ("decode", "decode"), ("prefill", "prefill")]
)
def test_a_command_names_the_unit_whatever_role_the_worker_has_now(
    tmp_path: Path, configured: str, started_as: str
) -> None:
    rig = standard()
    (row,) = workers.run(View(rig.core.shared, rig.now, {}), {"role": "decode"})
    written = tmp_path / "unit"
    command = f"sh -c 'echo baton-{{role}}@{{name}} > {written}'"
    restart(msgspec.structs.replace(row, configured_role=configured), command)
    assert written.read_text() == f"baton-{started_as}@d0\n"


@pytest.mark.parametrize("forked", [False, True])
def test_a_worker_of_this_host_is_told_by_its_command_line(forked: bool) -> None:
    """A forked one sets it, as one word."""
    rig = standard()
    (row,) = workers.run(View(rig.core.shared, rig.now, {}), {"role": "decode"})
    words = ["decode", "--config", "fleet.toml", "--name", "d0"]
    title = " ".join(words)
    program = (
        "import sys; from setproctitle import setproctitle\n"
        f"if {forked}: setproctitle('/longer/than/before' * 30 + ' {title}')\n"
        "print(flush=True); sys.stdin.read()"
    )
    command = [sys.executable, "-c", program, *([] if forked else words)]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe) as process:
        assert process.stdout is not None
        process.stdout.readline()
        with pytest.raises(ConfigError, match="not on this host"):
            restart(msgspec.structs.replace(row, name="d9", pid=process.pid), "")
        restart(msgspec.structs.replace(row, pid=process.pid), "")
        assert process.wait(30) == -signal.SIGTERM
