"""Bounded staging memory: what KV passes through between the engine's blocks and the wire.

Theory of operation: a pool has equal buffers, made on first use, never more than `count`, in a
shared segment where there is one (`shared_segment.py`), or on a card. A buffer that UCX uses is not
free before UCX has completed the request, and a loaned one not before D or the transfer's end has
ended the loan, so `release` is called from there only. Who finds no free buffer registers a claim;
claims are served first come, first served, one buffer each, so that one slow peer holds at most its
window and never the whole pool.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import structlog

from common.config.kv import CARD_BUFFERS
from common.kv.checksum.definition import Bytes
from common.kv.checksum.header import HEADER_BYTES
from common.kv.layout import DeviceCopies, Payload
from common.kv.staging.shared_segment import SharedSegment

ALIGN = 4096
_NOTHING = np.empty(0, np.uint8)


@dataclass(frozen=True, slots=True, eq=False)
class Buffer:
    """Room for one message."""

    header: Bytes
    """In host memory."""
    payload: Payload
    message: Bytes | None
    """Both, one after the other in host memory; None: the payload is on a card and travels as a
    message of its own."""


def bare_buffer() -> Buffer:
    """Of no pool, for a header without payload."""
    message = np.empty(HEADER_BYTES, np.uint8)
    return Buffer(message, _NOTHING, message)


class StagingPool:
    """Buffers for one message each: a header and up to `payload_bytes`."""

    def __init__(
        self,
        payload_bytes: int,
        total_bytes: int,
        *,
        shared: bool = False,
        device: DeviceCopies | None = None,
    ) -> None:
        """`payload_bytes`: the largest payload of one message. `shared`: allocate in a shared
        segment, if this system has them. `device`: a card that must reach the buffers."""
        self.payload_bytes = payload_bytes
        self.count = max(2, total_bytes // (payload_bytes + HEADER_BYTES))
        self._stride = -(-(payload_bytes + HEADER_BYTES) // ALIGN) * ALIGN
        self._device = device
        self.segment = _make_segment(self.count * self._stride) if shared else None
        self._base = 0 if self.segment is None else int(self.segment.memory.ctypes.data)
        if self.segment is not None and device is not None:
            _lock(self.segment.memory, device)
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
        return int(buffer.header.ctypes.data) - self._base

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
        self._made += 1
        return self._make(self._made - 1)

    def _make(self, number: int) -> Buffer:
        start = number * self._stride
        raw = None if self.segment is None else self.segment.memory
        if raw is None:
            raw = np.empty(self._stride + ALIGN, np.uint8)
            start = -raw.ctypes.data % ALIGN
            if self._device is not None:
                raw, start = raw[start : start + self._stride], 0
                _lock(raw, self._device)
        message = raw[start : start + HEADER_BYTES + self.payload_bytes]
        return Buffer(message[:HEADER_BYTES], message[HEADER_BYTES:], message)


def _lock(memory: Bytes, device: DeviceCopies) -> None:
    if not device.lock_pages(memory):
        sentence = (
            f"CUDA cannot page-lock {memory.nbytes >> 20} MiB of staging memory, so that copies to "
            "the GPU and from it hold up the KV thread; lower [kv] staging_mib, or free host memory"
        )
        structlog.get_logger("baton").warning("kv.not_locked", sentence=sentence)


class CardPool(StagingPool):
    """Buffers whose payload is on a card."""

    def __init__(self, memory: Payload) -> None:
        """`memory`: all of it."""
        super().__init__(memory.nbytes // CARD_BUFFERS, 0)
        self.count = CARD_BUFFERS
        self._memory = memory

    def _make(self, number: int) -> Buffer:
        start = number * self.payload_bytes
        payload = self._memory[start : start + self.payload_bytes]
        return Buffer(np.zeros(HEADER_BYTES, np.uint8), payload, None)


def _make_segment(size: int) -> SharedSegment | None:
    try:
        return SharedSegment(size)
    except OSError:
        return None


class Pools(NamedTuple):
    """The staging memory of one side."""

    host: StagingPool
    card: StagingPool | None = None
    """For what goes from card to card; None where nothing does."""

    @property
    def card_bytes(self) -> int:
        """The largest payload from card to card; 0 if there is none."""
        return self.card.payload_bytes if self.card is not None else 0

    def of(self, *, direct: bool) -> StagingPool:
        """The ticket table and the handshake see to it that nothing is `direct` where there is no
        pool for it."""
        pool = self.card if direct else self.host
        assert pool is not None
        return pool
