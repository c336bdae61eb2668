"""`python -m loadtest.parent_death COMMAND...` becomes that command, and ends with its starter.

However a measurement ends, by signal or by kill -9, the fleet that it started does not outlive it.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys

PR_SET_PDEATHSIG = 1
"""Survives the exec."""


def main(command: list[str], starter: int) -> None:
    ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, signal.SIGTERM)
    if os.getppid() != starter:
        sys.exit("loadtest.parent_death: the starter died meanwhile")
    os.execv(command[0], command)  # noqa: S606 (a list of arguments, never a shell)


if __name__ == "__main__":
    main(sys.argv[2:], int(sys.argv[1]))
