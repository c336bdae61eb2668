"""The memory of a store's slots on one rank: whole blocks in the form in which KV travels.

Theory of operation: a digest is made of the sums that the copy into a slot yields, together with
the block's name. The copy out of it yields the sums of what it read. So a damaged block, and one
that was not written to its slot, both fail the one comparison. The digest goes with the block to
the disk. Digests find faults; they are no proof against whoever may write this process' memory or
its files.
"""

from __future__ import annotations

import threading

import numpy as np

from common.kv.checksum.definition import Bytes
from common.kv.checksum.kernel import sum_of
from common.kv.layout import Geometry, HostMemory, KvMemory
from common.kv.store.pages import populate
from common.kv.store.record import Record, block_digest
from common.kv.store.table import BlockCopy, BlockName


class Arena:
    """`slots` blocks of host memory. The system hands it out as it is first written, or sooner,
    once `populate` was called."""

    def __init__(self, memory: KvMemory, slots: int) -> None:
        self._memory = memory
        self.block_bytes = memory.geometry.block_bytes
        self.bytes: Bytes = np.empty(slots * self.block_bytes, np.uint8)
        whole = Geometry(1, slots, self.block_bytes, self.bytes.nbytes, self.block_bytes)
        #: The slots as blocks of one page.
        self._slots = HostMemory(self.bytes, whole)
        self._digests: dict[int, bytes] = {}
        self._closed = threading.Event()

    def populate(self) -> None:
        """Has the system hand out all of the memory from now on, on a thread of its own."""
        fill = threading.Thread(
            target=populate, args=(self.bytes, self._closed), name="baton-pages", daemon=True
        )
        fill.start()

    def close(self) -> None:
        """No more of the memory is asked for."""
        self._closed.set()

    def write(self, copy: BlockCopy) -> None:
        """Copies the engine's block to the slot."""
        total = self._memory.gather([copy.block_id], self._at(copy.slot))
        self._digests[copy.slot] = block_digest(copy.name, total)

    def read(self, copy: BlockCopy) -> bool:
        """Copies the slot to the engine's block. False if it does not hold this block undamaged;
        the engine's block must not be used then."""
        total = self._memory.scatter([copy.block_id], self._at(copy.slot))
        return self._digests.get(copy.slot) == block_digest(copy.name, total)

    def seal(self, slot: int, name: BlockName) -> None:
        """The slot was filled with this block through `as_memory`, and its bytes were verified."""
        self._digests[slot] = block_digest(name, sum_of(self._at(slot)))

    def copy_out(self, slot: int, name: BlockName, out: Bytes) -> bytes | None:
        """Copies the slot to `out` and returns the block's digest. None if the slot does not hold
        this block undamaged."""
        digest = block_digest(name, self._slots.gather([slot], out))
        return digest if self._digests.get(slot) == digest else None

    def place(self, copy: BlockCopy, data: Bytes, record: Record | None) -> bool:
        """Copies what was read from the disk to the engine's block. False if it is not this block
        undamaged; the engine's block must not be used then."""
        if record is None:
            return False
        total = self._memory.scatter([copy.block_id], data)
        return record.digest == block_digest(copy.name, total)

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

    def _at(self, slot: int) -> Bytes:
        start = slot * self.block_bytes
        return self.bytes[start : start + self.block_bytes]
