"""A worker whose disk reads `RATE` bytes per second: `python -m tests.bench.slow_disk decode ...`.

A read of a block takes at least what its bytes take at that rate. The engine is a fork of this
process, so its reads are slow, too.
"""

from __future__ import annotations

import sys
import time

from common.kv.checksum.definition import Bytes
from common.kv.store.record import Record
from common.kv.store.segments import Segments
from services.cli import main

RATE = 200e6


def install() -> None:
    read = Segments.read

    def slow(segments: Segments, slot: int, out: Bytes) -> Record | None:
        began = time.monotonic()
        record = read(segments, slot, out)
        time.sleep(max(0.0, began + out.nbytes / RATE - time.monotonic()))
        return record

    Segments.read = slow  # type: ignore[method-assign, assignment]


if __name__ == "__main__":
    install()
    sys.exit(main(sys.argv[1:]))
