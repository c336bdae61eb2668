"""Memory that the system backs with pages before somebody waits for them.

Theory of operation: the system hands out memory page by page, to whoever writes to a page first. In
a virtual machine whose host backs its memory on demand, that takes ten times as long as the copy
that waits for it. `populate` asks for the pages without writing to them, so that others may write
meanwhile. Each step runs without the GIL, and is followed by a rest. A thread of low priority would
not do instead of that: the process cannot map memory during a step, and might wait for it.

Source: madvise(2), MADV_POPULATE_WRITE, Linux 5.14.
"""

from __future__ import annotations

import ctypes
import mmap
import threading
import time

from common.kv.checksum.definition import Bytes

STEP_BYTES = 2 << 20
REST = 4.0
"""After each step, in times that the step has taken."""
_POPULATE_WRITE = 23


def populate(memory: Bytes, stopped: threading.Event) -> None:
    """Returns when all of this memory has pages, when `stopped` is set, or when the system gives
    none ahead of need: an older one, or one that has none left. What it holds stays as it is."""
    madvise = ctypes.CDLL(None).madvise
    first = memory.ctypes.data // mmap.PAGESIZE * mmap.PAGESIZE
    end = memory.ctypes.data + memory.nbytes
    rest = 0.0
    for start in range(first, end, STEP_BYTES):
        if stopped.wait(rest):
            return
        began, size = time.monotonic(), min(STEP_BYTES, end - start)
        if madvise(ctypes.c_void_p(start), ctypes.c_size_t(size), _POPULATE_WRITE):
            return
        rest = REST * (time.monotonic() - began)
