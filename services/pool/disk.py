"""The disk below a pool's memory, on the daemon's thread.

Theory of operation: it is the disk tier of a worker's store. What has come to the memory is written
there with the name by which routers know it, because after a restart no engine tells that name
again. The headers of the records then say what the pool has, and routers are told of it by the same
names. What a disk that has failed held is not held any more.
"""

from __future__ import annotations

import threading
from dataclasses import replace
from pathlib import Path

from common.clock import Clock
from common.config import KvConfig
from common.kv.messages import KvCopied
from common.kv.offers.pulls import GROUP
from common.kv.store.disk import DiskPlace
from common.kv.store.disk_plan import DiskIndex, DiskStore, disk_slots
from common.kv.store.promotions import Promotions
from common.kv.store.record import record_key
from common.kv.store.results import StoreResults
from common.kv.store.sealing import sealed_for, secret_of
from common.kv.store.side import StoreSide
from common.kv.store.table import BlockName, StoreCounts, StoreTable
from common.messages import Layout
from services.pool.holdings import named


class PoolDisk:
    """`memory`: the table of the pool's memory."""

    def __init__(
        self,
        memory: StoreTable,
        place: DiskPlace,
        layout: Layout,
        config: KvConfig,
        clock: Clock,
    ) -> None:
        ttl_s, one, share = config.store.ttl_s, layout.block_bytes, config.store.tenant_share
        self.table = StoreTable(place.slots, ttl_s, guard=threading.RLock(), share=share)
        self._memory = memory
        self._clock = clock
        index = DiskIndex([place.segments(one)])
        backlog = (config.store.backlog_mib << 20) // one
        self._plan = DiskStore(memory, self.table, index, backlog, ttl_s, clock)

    @property
    def pending(self) -> bool:
        return self._plan.pending or self._plan.untold

    @property
    def counts(self) -> StoreCounts:
        return replace(self._plan.counts)

    def saved(self, copied: KvCopied) -> None:
        """The memory has got these blocks."""
        now = self._clock.monotonic()
        for block_hash, ours in named(copied.hashes, copied.names):
            name = BlockName(GROUP, block_hash)
            for slot in self._memory.find([name], now):
                self._plan.saved(slot, name, ours)

    def ended(self, results: StoreResults) -> None:
        """What the KV thread reports of its copies."""
        self._plan.ended(results)

    def step(self, side: StoreSide, promotions: Promotions | None) -> None:
        """Orders what is to be written."""
        if promotions is not None:
            self._plan.mark_used(promotions.take_used())
        spills, used, dropped = self._plan.step()
        if spills or used or dropped:
            side.spill(spills, used, dropped)

    def changes(self) -> dict[BlockName, bytes | None]:
        """As `DiskStore.changes`."""
        return self._plan.changes()


def disk_place(pool: str, config: KvConfig, layout: Layout) -> DiskPlace | None:
    """None if it has no disk, or one that holds no block. Raises BatonError for a key that cannot
    be used."""
    slots = disk_slots(config.store, layout.block_bytes, 1)
    if not slots:
        return None
    secret = secret_of(config.store)
    form = layout.block_bytes, layout.block_tokens, layout.layers, sealed_for(secret)
    folder = Path(config.store.path) / f"{pool}.pool"
    rate = config.store.disk_write_mib_s * (1 << 20)
    return DiskPlace(folder, record_key(layout.fingerprint, *form), slots, rate, secret)
