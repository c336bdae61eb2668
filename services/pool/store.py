"""A pool's memory and KV plane: the KV service of a worker over a store alone.

Theory of operation: the KV thread is that of any worker. It pulls what workers offer into the slots
of the store, and gives workers what they ask for by hash. The engine's memory that it expects is
one block here, which nobody uses. The daemon's thread copies nothing: it says what is too old, and
what of the memory goes to the disk.

What only the disk has (`disk.py`) is brought to memory when it is pulled, on the KV thread.
"""

from __future__ import annotations

import threading
from dataclasses import replace

import numpy as np

from common.clock import Clock
from common.config import KvConfig
from common.kv.daemon_link.side_channel import DaemonSideChannel
from common.kv.layout import Geometry, HostMemory
from common.kv.messages import KvCopied, KvDone, KvOrder, KvStatus
from common.kv.peers.channel import WorkerIdentity
from common.kv.service import KvService
from common.kv.store.results import StoreResults, StoreSize
from common.kv.store.table import StoreCounts, StoreTable
from common.messages import Capacity, Introduce, Layout, OrderStore
from services.pool.disk import PoolDisk, disk_place
from services.pool.holdings import Holdings


class PoolStore:
    """KV of one layout."""

    def __init__(
        self, identity: WorkerIdentity, config: KvConfig, layout: Layout, address: str, clock: Clock
    ) -> None:
        """`address`: of the side channel to the KV thread. Raises ValueError for a layout that no
        worker has, or of which the memory holds no block."""
        slots, place = slots_of(config, layout), disk_place(identity.name, config, layout)
        below = place.slots if place is not None else 0
        blocks = slots + below
        self.capacity = Capacity(
            block_tokens=layout.block_tokens,
            kv_blocks=blocks,
            kv_block_bytes=layout.block_bytes,
            max_model_len=0,
            max_num_seqs=0,
            pull_blocks=blocks,
            kv_layers=layout.layers,
            disk_blocks=below,
        )
        self.kv_address = ""
        self.holdings = Holdings(slots, below)
        store, lock = config.store, threading.RLock()
        self.table = StoreTable(slots, store.ttl_s, guard=lock, share=store.tenant_share)
        self._clock = clock
        self._side = DaemonSideChannel(address)
        self._disk = PoolDisk(self.table, place, layout, config, clock) if place else None
        self._service = KvService(
            identity,
            config.by_block(),
            _one_block(layout),
            address,
            store=StoreSize(slots, config.store.ttl_s, place),
        )

    def open(self) -> None:
        """Blocks until the listener is up. Raises BatonError when UCX cannot be set up."""
        self.kv_address = self._service.start()
        self._service.share_store(self.table, self._disk.table if self._disk is not None else None)

    def attach(self) -> None:
        """Once, on the daemon's loop: the KV thread's reports are delivered there."""
        self._side.start(self._on_done, self._on_copied)

    @property
    def pending(self) -> bool:
        """Whether something waits for the next `update`."""
        return self._disk is not None and self._disk.pending

    def update(self) -> KvStatus | None:
        """Several times a second: drops what is too old, writes what has come to the disk, and
        learns what is held. Raises BatonError when the KV thread has failed."""
        self._service.drain()
        self.table.expire(self._clock.monotonic())
        side, counts = self._service.store, StoreCounts()
        results = side.drain() if side is not None else StoreResults()
        if self._disk is not None and side is not None:
            self._disk.ended(results)
            self._disk.step(side, self._service.promotions)
            self.holdings.update_disk(self._disk.changes())
            counts = self._disk.counts
        self.holdings.update(self.table.changes(), self.table.__contains__)
        if side is not None:
            side.note(replace(self.table.counts), counts)
        return self._side.status

    def take(self, message: Introduce | OrderStore) -> None:
        """A worker's listener, to which to connect before it offers the first blocks; or what an
        operator wants of some blocks."""
        match message:
            case Introduce():
                self._service.connect(message.kv_address)
            case OrderStore():
                ends = self.holdings.ends_of(message.names)
                self._service.order_store(KvOrder(action=message.action, ends=ends))

    def close(self) -> None:
        self._service.stop()
        self._side.close()

    def _on_copied(self, copied: KvCopied) -> None:
        """What has gone again by now is not listed, because the table tells of that once. What went
        to make room is told first, or the names would seem to be more than there is room for."""
        self.holdings.update(self.table.changes(), self.table.__contains__)
        self.holdings.add(copied.hashes, copied.names, self.table.__contains__)
        if self._disk is not None:
            self._disk.saved(copied)

    def _on_done(self, done: KvDone) -> None:
        """A pull of a worker's blocks that came to a bad end is counted, and offered again."""


def slots_of(config: KvConfig, layout: Layout) -> int:
    """How many blocks fit. Raises ValueError."""
    sizes = layout.block_tokens, layout.block_bytes, layout.layers
    if min(sizes) < 1 or layout.block_bytes % layout.layers:
        raise ValueError(f"{layout.worker} has no layout that a pool can hold")
    slots = (config.store.ram_mib << 20) // layout.block_bytes
    if not slots:
        raise ValueError(
            f"a block of {layout.worker} has {layout.block_bytes} bytes, and [pool.NAME.kv.store] "
            "ram_mib holds none"
        )
    return slots


def _one_block(layout: Layout) -> HostMemory:
    page = layout.block_bytes // layout.layers
    geometry = Geometry(layout.layers, 1, page, page, page)
    return HostMemory(np.zeros(layout.block_bytes, np.uint8), geometry)
