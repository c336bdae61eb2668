"""Takes from this process what `MemoryDenyWriteExecute=yes` takes from a systemd unit."""

from __future__ import annotations

import ctypes

from common.kv.checksum import kernel

PR_SET_MDWE, PR_MDWE_REFUSE_EXEC_GAIN = 65, 1


def forbid_executable_memory() -> None:
    """From now on this process may not make memory executable, until it ends. A Linux older than
    6.3 cannot forbid it, and there the check before compiling is made to fail."""
    if ctypes.CDLL(None).prctl(PR_SET_MDWE, PR_MDWE_REFUSE_EXEC_GAIN, 0, 0, 0):
        kernel._check_executable_memory = _forbidden


def _forbidden() -> None:
    raise PermissionError("this test forbids executable memory")
