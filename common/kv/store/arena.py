"""The memory of a store's slots on one rank: whole blocks in the form in which KV travels.

Theory of operation: a digest is made of the sums that the copy into a slot yields, together with
the block's name. The copy out of it yields the sums of what it read. So a damaged block, and one
that was not written to its slot, both fail the one comparison. The digest goes with the block to
the disk. Digests find faults; they are no proof against whoever may write this process' memory or
its files.

A copy between a slot and the engine's block in host memory is over when it was asked for. On a card
it runs by itself, after the work of the engine that it is to follow, and the card sums it up; the
slots are page-locked for that.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

import numpy as np

from common.errors import BatonError, Code
from common.kv.checksum.definition import Bytes, Sum
from common.kv.checksum.kernel import sum_of
from common.kv.layout import Geometry, HostMemory, KvMemory, Mark
from common.kv.store.pages import populate
from common.kv.store.record import Record, block_digest
from common.kv.store.table import BlockCopy, BlockName


class Arena:
    """`slots` blocks of host memory. The system hands it out as it is first written, or sooner,
    once `prepare` was called. All methods but `order_after_copies` are called on the KV thread."""

    def __init__(self, memory: KvMemory, slots: int) -> None:
        self._memory = memory
        self.block_bytes = memory.geometry.block_bytes
        self.bytes: Bytes = np.empty(slots * self.block_bytes, np.uint8)
        self._layers = range(memory.geometry.layers)
        whole = Geometry(1, slots, self.block_bytes, self.bytes.nbytes, self.block_bytes)
        #: The slots as blocks of one page.
        self._slots = HostMemory(self.bytes, whole)
        self._digests: dict[int, bytes] = {}
        self._closed = threading.Event()

    def prepare(self) -> None:
        """Has the system hand out all of the memory from now on, on a thread of its own; for an
        engine on a card that starts its copies itself, page-locked, before this returns. Raises
        BatonError(CONFIG_INVALID) if so much cannot be locked."""
        if self._memory.device is not None:
            self._lock(self.bytes)
            return
        fill = threading.Thread(
            target=populate, args=(self.bytes, self._closed), name="baton-pages", daemon=True
        )
        fill.start()

    def close(self) -> None:
        """No more of the memory is asked for."""
        self._closed.set()

    def buffer(self) -> Bytes:
        """Memory for one block that `place` can copy from. Errors: as of `prepare`."""
        made = np.empty(self.block_bytes, np.uint8)
        if self._memory.device is not None:
            self._lock(made)
        return made

    def write(self, copy: BlockCopy, after: Mark | None, done: Callable[[], None]) -> None:
        """Copies the engine's block to the slot, once `after` has passed. `done` is called once:
        before this returns, or, on a card, later."""

        def copied(total: Sum) -> None:
            self._digests[copy.slot] = block_digest(copy.name, total)
            done()

        device, out = self._memory.device, self._at(copy.slot)
        if device is not None:
            device.start_gather([copy.block_id], out, self._layers, after, copied)
            return
        if after is not None:
            after.synchronize()
        copied(self._memory.gather([copy.block_id], out))

    def read(self, copy: BlockCopy, after: Mark | None, done: Callable[[bool], None]) -> None:
        """Copies the slot to the engine's block, which may be written once `after` has passed.
        `done` is called once: before this returns, or, on a card, later; with False if the slot
        does not hold this block undamaged, and the engine's block must not be used then."""
        digest = self._digests.get(copy.slot)
        self._scatter(copy, self._at(copy.slot), digest, after, done)

    def order_after_copies(self) -> None:
        """What the calling thread, the engine's, gives to its card from now on runs after every
        copy that has begun."""
        if self._memory.device is not None:
            self._memory.device.order_after_copies()

    def seal(self, slot: int, name: BlockName) -> None:
        """The slot was filled with this block through `as_memory`, and its bytes were verified."""
        self._digests[slot] = block_digest(name, sum_of(self._at(slot)))

    def copy_out(self, slot: int, name: BlockName, out: Bytes) -> bytes | None:
        """Copies the slot to `out` and returns the block's digest. None if the slot does not hold
        this block undamaged."""
        digest = block_digest(name, self._slots.gather([slot], out))
        return digest if self._digests.get(slot) == digest else None

    def place(
        self,
        copy: BlockCopy,
        data: Bytes,
        record: Record | None,
        after: Mark | None,
        done: Callable[[bool], None],
    ) -> None:
        """As `read`, for what was read from the disk to `data`, which must stay as it is until
        `done`."""
        if record is None:
            done(False)
        else:
            self._scatter(copy, data, record.digest, after, done)

    def fill(self, slot: int, name: BlockName, data: Bytes, record: Record | None) -> bool:
        """Copies what was read from the disk to the slot. False if it is not this block undamaged;
        the slot must not be used then."""
        if record is None:
            return False
        digest = block_digest(name, self._slots.scatter([slot], data))
        self._digests[slot] = digest
        return record.digest == digest

    def holds(self, slot: int, name: BlockName) -> bool:
        """Whether the slot holds this block undamaged."""
        return self._digests.get(slot) == block_digest(name, sum_of(self._at(slot)))

    def as_memory(self) -> HostMemory:
        """The slots as the blocks of a memory, for engine memory of one region."""
        engine, one = self._memory.geometry, self.block_bytes
        slots, page = self.bytes.nbytes // one, engine.page_bytes
        return HostMemory(self.bytes, Geometry(engine.layers, slots, page, page, one))

    def _scatter(
        self,
        copy: BlockCopy,
        data: Bytes,
        digest: bytes | None,
        after: Mark | None,
        done: Callable[[bool], None],
    ) -> None:
        def copied(total: Sum) -> None:
            done(digest == block_digest(copy.name, total))

        device = self._memory.device
        if device is not None:
            device.start_scatter([copy.block_id], data, self._layers, after, copied)
            return
        if after is not None:
            after.synchronize()
        copied(self._memory.scatter([copy.block_id], data))

    def _lock(self, memory: Bytes) -> None:
        device = self._memory.device
        if device is not None and not device.lock_pages(memory):
            raise BatonError(
                Code.CONFIG_INVALID,
                f"{memory.nbytes >> 20} MiB of the store cannot be page-locked for the GPU; lower "
                "[kv.store] ram_mib",
            )

    def _at(self, slot: int) -> Bytes:
        start = slot * self.block_bytes
        return self.bytes[start : start + self.block_bytes]
