"""Bounded staging memory: what KV passes through between the engine's blocks and the wire.

Theory of operation: a pool has equal buffers, made on first use, never more than `count`, in a
shared segment where there is one (`shared_segment.py`). A buffer that UCX uses is not free before
UCX has completed the request, and a loaned one not before D or the transfer's end has ended the
loan, so `release` is called from there only. Who finds no free buffer registers a claim; claims are
served first come, first served, one buffer each, so that one slow peer holds at most its window and
never the whole pool.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from common.kv.checksum.header import HEADER_BYTES
from common.kv.staging.shared_segment import SharedSegment

Buffer = NDArray[np.uint8]
ALIGN = 4096


class StagingPool:
    """Buffers for one message each: a header and up to `payload_bytes`."""

    def __init__(self, payload_bytes: int, total_bytes: int, *, shared: bool = False) -> None:
        """`payload_bytes`: the largest payload of one message. `shared`: allocate in a shared
        segment, if this system has them."""
        self.payload_bytes = payload_bytes
        self.count = max(2, total_bytes // (payload_bytes + HEADER_BYTES))
        self._stride = -(-(payload_bytes + HEADER_BYTES) // ALIGN) * ALIGN
        self.segment = _make_segment(self.count * self._stride) if shared else None
        self._base = 0 if self.segment is None else int(self.segment.memory.ctypes.data)
        self._free: list[Buffer] = []
        self._made = 0
        self._claims: deque[Callable[[Buffer], bool]] = deque()

    @property
    def used(self) -> int:
        return self._made - len(self._free)

    @property
    def half_free(self) -> bool:
        """Whether more than half of the buffers are free."""
        return 2 * self.used < self.count

    def offset(self, buffer: Buffer) -> int:
        """Where in the shared segment this buffer begins."""
        return int(buffer.ctypes.data) - self._base

    def acquire(self) -> Buffer | None:
        """None when all buffers are in use, or when claims wait already."""
        if self._claims:
            return None
        return self._pop()

    def claim(self, use: Callable[[Buffer], bool]) -> None:
        """Calls `use` with a buffer, now or when one is free; False returns the buffer unused."""
        self._claims.append(use)
        self._serve_claims()

    def release(self, buffer: Buffer) -> None:
        self._free.append(buffer)
        self._serve_claims()

    def _serve_claims(self) -> None:
        while self._claims:
            buffer = self._pop()
            if buffer is None:
                return
            if not self._claims.popleft()(buffer):
                self._free.append(buffer)

    def _pop(self) -> Buffer | None:
        if self._free:
            return self._free.pop()
        if self._made >= self.count:
            return None
        start = self._made * self._stride
        raw = None if self.segment is None else self.segment.memory
        self._made += 1
        if raw is None:
            raw = np.empty(self._stride + ALIGN, np.uint8)
            start = -raw.ctypes.data % ALIGN
        return raw[start : start + HEADER_BYTES + self.payload_bytes]


def _make_segment(size: int) -> SharedSegment | None:
    try:
        return SharedSegment(size)
    except OSError:
        return None
