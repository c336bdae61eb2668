"""The command line as other programs meet it."""

import os
import subprocess

from services.cli import EXIT_BROKEN_PIPE
from tests.rigs.processes import BATON


def test_a_reader_that_leaves_is_no_crash() -> None:
    """As `baton completion bash | head -0`."""
    read, write = os.pipe()
    os.close(read)
    command = [*BATON, "completion", "bash"]
    done = subprocess.run(command, stdout=write, stderr=subprocess.PIPE, timeout=60, check=False)
    os.close(write)
    assert (done.returncode, done.stderr) == (EXIT_BROKEN_PIPE, b"")
