"""Faults of a prefill engine, which the test switches in its process through shared memory: what is
read out of the KV cache is bent, or the process kills itself in the middle of a handoff."""

from __future__ import annotations

import contextlib
import enum
import mmap
import os
import signal
import struct
from collections.abc import Iterator
from typing import Any

import numpy as np

from common.kv.checksum.definition import Sum
from common.kv.checksum.kernel import sum_of
from common.kv.packing import Packing


class Fault(enum.IntEnum):
    NONE = 0
    #: A byte is wrong and the digest is not, as after damage on the way.
    DAMAGE = 1
    #: All is wrong and the digest is true. Nobody can find that; it shows that KV decides the text.
    MISLEAD = 2
    #: Kills the process, `kill -9`.
    DIE = 3


class PrefillFaults:
    """Made before the engines are forked, which happens under `installed`."""

    _FIELDS = struct.Struct("=qq")

    def __init__(self) -> None:
        self._shared = mmap.mmap(-1, mmap.PAGESIZE)

    def switch(self, fault: Fault, after: int = 0) -> None:
        """From now on, or once so many more messages have been read out of the KV cache."""
        self._FIELDS.pack_into(self._shared, 0, fault, after)

    @contextlib.contextmanager
    def installed(self) -> Iterator[None]:
        original = Packing.gather

        def gather(packing: Packing, block_ids: Any, payload: Any, message: Any) -> Sum:
            fault, wait = self._FIELDS.unpack_from(self._shared)
            if fault == Fault.NONE or wait:
                self._FIELDS.pack_into(self._shared, 0, fault, max(0, wait - 1))
                return original(packing, block_ids, payload, message)
            if fault == Fault.DIE:
                os.kill(os.getpid(), signal.SIGKILL)
            total = original(packing, block_ids, payload, message)
            if fault == Fault.DAMAGE:
                payload[0] ^= 0xFF
                return total
            payload.view(np.float32)[:] += 0.5
            return sum_of(payload)

        Packing.gather = gather  # type: ignore[method-assign, assignment]
        try:
            yield
        finally:
            Packing.gather = original  # type: ignore[method-assign]
