"""Bounded staging memory: what KV passes through between the engine's blocks and the wire.

Theory of operation: equal buffers, made on first use, never more than `count`, in an arena where
there is one (`arena.py`). A buffer that UCX knows is not free before UCX said so, and a lent one
not before D or the transfer's end did, so `give` is called from there only. Whoever finds none free
leaves a claim and is called back in turn, first come first served, one buffer a turn: one slow peer
holds at most its window, not the pool.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from common.kv.arena import Arena
from common.kv.digest import HEADER_BYTES

Buffer = NDArray[np.uint8]
ALIGN = 4096


class Staging:
    """`payload_bytes`: largest payload of one message; a buffer also has room for the header.
    `shared`: in an arena, if this system can."""

    def __init__(self, payload_bytes: int, total_bytes: int, *, shared: bool = False) -> None:
        self.payload_bytes = payload_bytes
        self.count = max(2, total_bytes // (payload_bytes + HEADER_BYTES))
        self._stride = -(-(payload_bytes + HEADER_BYTES) // ALIGN) * ALIGN
        self.arena = _arena(self.count * self._stride) if shared else None
        self._base = 0 if self.arena is None else int(self.arena.memory.ctypes.data)
        self._free: list[Buffer] = []
        self._made = 0
        self._claims: deque[Callable[[Buffer], bool]] = deque()

    @property
    def used(self) -> int:
        return self._made - len(self._free)

    @property
    def ample(self) -> bool:
        """Half of it is free."""
        return 2 * self.used < self.count

    def offset(self, buffer: Buffer) -> int:
        """Where in the arena this buffer begins."""
        return int(buffer.ctypes.data) - self._base

    def take(self) -> Buffer | None:
        """None when all are in use, or others wait already."""
        if self._claims:
            return None
        return self._pop()

    def claim(self, use: Callable[[Buffer], bool]) -> None:
        """Calls `use` with a buffer, now or when one is free; False says it is not wanted."""
        self._claims.append(use)
        self._serve()

    def give(self, buffer: Buffer) -> None:
        self._free.append(buffer)
        self._serve()

    def _serve(self) -> None:
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
        start, raw = self._made * self._stride, None if self.arena is None else self.arena.memory
        self._made += 1
        if raw is None:
            raw = np.empty(self._stride + ALIGN, np.uint8)
            start = -raw.ctypes.data % ALIGN
        return raw[start : start + HEADER_BYTES + self.payload_bytes]


def _arena(size: int) -> Arena | None:
    try:
        return Arena(size)
    except OSError:
        return None
