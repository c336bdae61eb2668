"""The disk tier of one rank: a thread of its own reads and writes the segment files.

Theory of operation: the KV thread orders one block at a time and never waits; each order is
answered by a call on its loop, in the buffer that the order gave or was given. Reads go before
writes, and those that somebody waits for before those ahead of need. Writes are spread so that they
stay within the rate of bytes that is allowed. A read is answered with the bytes and the record as
they are on the disk; whoever copies them to the engine judges them. The first error of the system
ends the tier for the rest of the process, is told once, and fails every order from then on, so that
nobody waits for a disk that is full or gone.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeAlias

import numpy as np

from common.kv.checksum.definition import Bytes
from common.kv.store.arena import Arena
from common.kv.store.record import Record, Spill
from common.kv.store.segments import Segments

BUFFER_BYTES = 32 << 20
"""Of the buffers of one direction, where a block is not larger; there are two at least."""
BUFFERS_MAX = 16
LOCKED_WAIT_S, LOCKED_RETRY_S = 5.0, 0.1
"""How long another process may have the folder: the one before this, which is ending."""
CLOSE_S = 2.0
MEASURED_WEIGHT = 0.05
"""Of the latest read in the measured rate."""
DISK_ANSWER_S = 10.0
"""A disk that answers nothing for so long while blocks are wanted of it is to be given up."""


@dataclass(frozen=True, slots=True)
class DiskPlace:
    """Where the disk tier of one rank lies."""

    folder: Path
    key: bytes
    """As `record.record_key` makes it."""
    slots: int
    write_bytes_per_s: float
    secret: bytes = field(default=b"", repr=False)
    """As of `sealing.secret_of`."""

    def segments(self, block_bytes: int) -> Segments:
        """Not opened."""
        return Segments(self.folder, self.key, block_bytes, self.slots, self.secret)


OnRead: TypeAlias = Callable[[Bytes | None, Record | None], None]
"""`(buffer, record)`. The buffer is to be given back. The record is None for a block that is not
there; both are None where nothing could be read."""
OnWritten: TypeAlias = Callable[[bool], None]


@dataclass(slots=True)
class _Read:
    slot: int
    answer: OnRead


@dataclass(slots=True)
class _Write:
    slot: int
    record: Record
    buffer: Bytes
    answer: OnWritten


@dataclass(slots=True)
class _Use:
    slots: list[int]
    #: Unix time in seconds.
    at: float


class Disk:
    """All methods are called on the KV thread, whose loop `loop` is, and return at once."""

    def __init__(
        self,
        place: DiskPlace,
        arena: Arena,
        loop: asyncio.AbstractEventLoop,
        on_failed: Callable[[str], None],
    ) -> None:
        """`arena`: above it. `on_failed` is called once if the tier ends, with a sentence."""
        block_bytes = arena.block_bytes
        self._segments = place.segments(block_bytes)
        self._loop = loop
        self._on_failed = on_failed
        self._rate = place.write_bytes_per_s
        count = max(2, min(BUFFERS_MAX, BUFFER_BYTES // block_bytes))
        self._read_buffers = [arena.buffer() for _ in range(count)]
        self._write_buffers = [np.empty(block_bytes, np.uint8) for _ in range(count)]
        self._reads: deque[_Read] = deque()
        #: Reads that nobody waits for.
        self._reads_ahead: deque[_Read] = deque()
        #: When an order ended last, by the loop's clock.
        self.heard = 0.0
        #: Bytes of blocks per second of the latest reads; 0 before the first.
        self.read_bytes_per_s = 0.0
        self._writes: deque[_Write | _Use] = deque()
        self._failed = False
        self._closed = False
        self._write_at = 0.0
        #: Guards the orders, the buffers for reading and `_closed`; told when they change.
        self._guard = threading.Condition()
        self._thread = threading.Thread(target=self._run, name="baton-kv-disk", daemon=True)
        self._thread.start()

    def read(self, slot: int, answer: OnRead, *, ahead: bool = False) -> None:
        """`ahead`: nobody waits for it, and all that somebody waits for goes first."""
        with self._guard:
            (self._reads_ahead if ahead else self._reads).append(_Read(slot, answer))
            self._guard.notify()

    def give_back(self, buffer: Bytes) -> None:
        """What was read into this buffer has been used."""
        with self._guard:
            self._read_buffers.append(buffer)
            self._guard.notify()

    def write_buffer(self) -> Bytes | None:
        """A buffer to fill and to pass to `write`, or to `keep`; None if all are in use."""
        return self._write_buffers.pop() if self._write_buffers else None

    def keep(self, buffer: Bytes) -> None:
        """This buffer for writing was not needed."""
        self._write_buffers.append(buffer)

    def write(self, spill: Spill, digest: bytes, buffer: Bytes, answer: OnWritten) -> None:
        """The buffer holds the block of this spill."""

        def written(ok: bool) -> None:
            self._write_buffers.append(buffer)
            answer(ok)

        record = Record(spill.name, digest, time.time(), spill.ours, spill.owner)
        with self._guard:
            self._writes.append(_Write(spill.disk_slot, record, buffer, written))
            self._guard.notify()

    def mark_used(self, slots: list[int]) -> None:
        """These blocks are used now; the records are told, for the next process."""
        with self._guard:
            self._writes.append(_Use(slots, time.time()))
            self._guard.notify()

    def forget(self, slots: list[int]) -> None:
        """The next process does not find these blocks: they were used too long ago."""
        with self._guard:
            self._writes.append(_Use(slots, 0.0))
            self._guard.notify()

    def close(self) -> None:
        """Waits a moment for what is being written."""
        with self._guard:
            self._closed = True
            self._guard.notify()
        self._thread.join(CLOSE_S)

    def _run(self) -> None:
        try:
            self._open()
        except OSError as error:
            self._fail(error)
        while (order := self._next()) is not None:
            try:
                self._do(order)
            except OSError as error:
                self._fail(error)
                self._refuse(order)
        self._end_uses()
        self._segments.close()

    def _end_uses(self) -> None:
        """At the end: the next process is to know what was used, and what was dropped."""
        with contextlib.suppress(OSError):
            for order in self._writes:
                if isinstance(order, _Use) and not self._failed:
                    self._do(order)

    def _open(self) -> None:
        """Another process has the folder for a while where it is slow to end."""
        deadline = time.monotonic() + LOCKED_WAIT_S
        while not self._segments.open():
            with self._guard:
                if self._closed:
                    return
                if time.monotonic() > deadline:
                    raise BlockingIOError(0, "another process uses it; give each worker its own")
                self._guard.wait(LOCKED_RETRY_S)

    def _next(self) -> _Read | _Write | _Use | None:
        """The next order that can be done now; None when the tier is closed."""
        with self._guard:
            while not self._closed:
                reads = self._reads or self._reads_ahead
                if reads and (self._read_buffers or self._failed):
                    return reads.popleft()
                wait = self._write_at - time.monotonic()
                if self._writes and (wait <= 0 or self._failed):
                    return self._writes.popleft()
                self._guard.wait(wait if self._writes else None)
        return None

    def _do(self, order: _Read | _Write | _Use) -> None:
        if self._failed:
            self._refuse(order)
            return
        match order:
            case _Read(slot, answer):
                with self._guard:
                    buffer = self._read_buffers.pop()
                began = time.monotonic()
                try:
                    record = self._segments.read(slot, buffer)
                except OSError:
                    self.give_back(buffer)
                    raise
                self._measure(buffer.nbytes / max(1e-9, time.monotonic() - began))
                self._answer(lambda: answer(buffer, record))
            case _Write(slot, record, buffer, written):
                began = time.monotonic()
                self._segments.write(slot, record, buffer)
                self._write_at = max(began, self._write_at) + buffer.nbytes / self._rate
                self._answer(lambda: written(True))
            case _Use(slots, at):
                for slot in slots:
                    self._segments.mark_used(slot, at)

    def _measure(self, bytes_per_s: float) -> None:
        """A mean of reciprocals, because what counts is the seconds of a block."""
        before = self.read_bytes_per_s or bytes_per_s
        weight = MEASURED_WEIGHT
        self.read_bytes_per_s = 1 / ((1 - weight) / before + weight / bytes_per_s)

    def _refuse(self, order: _Read | _Write | _Use) -> None:
        match order:
            case _Read(_, answer):
                self._answer(lambda: answer(None, None))
            case _Write(_, _, _, written):
                self._answer(lambda: written(False))

    def _fail(self, error: OSError) -> None:
        if not self._failed:
            self._failed = True
            sentence = f"{self._segments.folder} cannot be used: {error.strerror or error}"
            self._answer(lambda: self._on_failed(sentence))

    def _answer(self, call: Callable[[], None]) -> None:
        self.heard = self._loop.time()
        with contextlib.suppress(RuntimeError):  # the loop has ended
            self._loop.call_soon_threadsafe(call)
