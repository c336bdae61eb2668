"""What an engine does with its store, played for a KV service that others pull from."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence

from common.kv.service import KvService
from common.kv.store.table import BlockCopy, BlockName, StoreTable

STORE_SLOTS = 112
WAIT_S = 5.0


class Stored:
    """The table of a service's store, shared with its KV thread."""

    def __init__(self, service: KvService) -> None:
        self._service = service
        self.table = StoreTable(STORE_SLOTS, ttl_s=300.0, guard=threading.RLock())
        service.share_store(self.table)

    def save(self, hashes: Sequence[bytes], block_ids: Sequence[int]) -> None:
        """Returns when the store has these blocks."""
        store = self._service.store
        assert store is not None
        copies = []
        for block_hash, block_id in zip(hashes, block_ids, strict=True):
            name = BlockName(0, block_hash)
            slot = self.table.begin_write(name)
            assert slot is not None
            copies.append(BlockCopy(slot, block_id, name))
        store.save(copies)
        until = time.monotonic() + WAIT_S
        written: list[int] = []
        while len(written) < len(copies):
            assert time.monotonic() < until
            self._service.wait_end(0.01)
            written += store.drain().written
        for slot in written:
            self.table.end_write(slot, time.monotonic(), whole=True)

    def load(self, slots: Sequence[int], hashes: Sequence[bytes], block_ids: Sequence[int]) -> None:
        """Reads these slots, which are kept for that, to these blocks, and waits for the end."""
        store = self._service.store
        assert store is not None
        copies = [
            BlockCopy(slot, block_id, BlockName(0, block_hash))
            for slot, block_hash, block_id in zip(slots, hashes, block_ids, strict=True)
        ]
        store.load("r#1", copies)
        until = time.monotonic() + WAIT_S
        while not store.drain().loaded:
            assert time.monotonic() < until
            self._service.wait_end(0.01)
        self.table.end_read(slots, time.monotonic())

    def damage(self, block_hash: bytes) -> None:
        """One bit of this block flips in the arena."""
        (slot,) = self.table.find([BlockName(0, block_hash)], time.monotonic())
        kv_thread = self._service._kv_thread
        assert kv_thread is not None
        assert kv_thread.store_side is not None
        arena = kv_thread.store_side._arena
        arena.bytes[slot * len(arena.bytes) // STORE_SLOTS + 77] ^= 16

    def expire(self) -> None:
        """Everything is too old."""
        self.table.expire(time.monotonic() + 1000.0)

    def held(self) -> int:
        return self.table.counts.held

    def readers(self) -> int:
        """Readers of all slots."""
        self.table.check_invariants()
        return sum(slot.readers for slot in self.table._slots)
