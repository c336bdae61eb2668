"""What a process that forks engines does for them by the processor of the host."""

from __future__ import annotations

import subprocess
import sys

from tests.unit.common.engine.test_vllm_on_cpu import needs_amx

PERMITTED = """
import ctypes, os, sys
from tests.unit.common.engine.test_vllm_on_cpu import engine
from common.engine.vllm_on_cpu import permit_amx

def permitted():
    mask, arch_get_xcomp_perm = ctypes.c_ulong(), 0x1022
    assert not ctypes.CDLL(None).syscall(158, arch_get_xcomp_perm, ctypes.byref(mask))
    return bool(mask.value & 1 << 18)  # the data of tiles

before = permitted()
permit_amx(engine())
child = os.fork()
if not child:
    os._exit(permitted())
print(before, permitted(), os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""


@needs_amx
def test_linux_is_asked_for_amx_before_engines_are_forked() -> None:
    done = subprocess.run(
        [sys.executable, "-c", PERMITTED], capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout.split() == ["False", "True", "1"]
