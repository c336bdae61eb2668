"""The memory of a store's slots on one rank: whole blocks in the form in which KV travels.

Theory of operation: a digest is made of the sums that the copy into a slot yields, together with
the block's name. The copy out of it yields the sums of what it read. So a damaged block, and one
that was not written to its slot, both fail the one comparison. Digests find faults; they are no
proof against whoever may write this process' memory.
"""

from __future__ import annotations

import numpy as np
import xxhash

from common.kv.checksum.definition import Bytes, Sum
from common.kv.checksum.kernel import sum_of
from common.kv.layout import Geometry, HostMemory, KvMemory
from common.kv.store.table import BlockCopy, BlockName


class Arena:
    """`slots` blocks of host memory, which the system hands out as they are first written."""

    def __init__(self, memory: KvMemory, slots: int) -> None:
        self._memory = memory
        self._block_bytes = memory.geometry.block_bytes
        self.bytes: Bytes = np.empty(slots * self._block_bytes, np.uint8)
        self._digests: dict[int, bytes] = {}

    def write(self, copy: BlockCopy) -> None:
        """Copies the engine's block to the slot."""
        total = self._memory.gather([copy.block_id], self._at(copy.slot))
        self._digests[copy.slot] = _digest(copy.name, total)

    def read(self, copy: BlockCopy) -> bool:
        """Copies the slot to the engine's block. False if it does not hold this block undamaged;
        the engine's block must not be used then."""
        total = self._memory.scatter([copy.block_id], self._at(copy.slot))
        return self._digests.get(copy.slot) == _digest(copy.name, total)

    def holds(self, slot: int, name: BlockName) -> bool:
        """Whether the slot holds this block undamaged."""
        return self._digests.get(slot) == _digest(name, sum_of(self._at(slot)))

    def as_memory(self) -> HostMemory:
        """The slots as the blocks of a memory, for engine memory of one region."""
        engine, one = self._memory.geometry, self._block_bytes
        slots, page = self.bytes.nbytes // one, engine.page_bytes
        return HostMemory(self.bytes, Geometry(engine.layers, slots, page, page, one))

    def _at(self, slot: int) -> Bytes:
        start = slot * self._block_bytes
        return self.bytes[start : start + self._block_bytes]


def _digest(name: BlockName, total: Sum) -> bytes:
    return xxhash.xxh3_128_digest(total + name.block_hash, seed=name.group)
