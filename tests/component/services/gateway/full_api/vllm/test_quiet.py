"""What makes an import beside streams quiet, in a process of its own: it cannot be undone."""

from __future__ import annotations

import subprocess
import sys

SCRIPT = """
import gc
from pathlib import Path
from services.gateway.full_api.vllm.quiet import quietly

def opened():
    return "libtorch_cpu" in Path("/proc/self/maps").read_text()

class Kept:
    pass

assert not opened()
try:
    with quietly():
        assert opened() and not gc.isenabled()
        kept = Kept()
        raise ImportError
except ImportError:
    pass
assert gc.isenabled()
assert not any(known is kept for known in gc.get_objects()), "the collector would visit it"
"""


def test_nothing_is_collected_and_torch_is_open_before_it_is_imported() -> None:
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
