"""A pool's memory and KV plane: the KV service of a worker over a store alone.

Theory of operation: the KV thread is that of any worker. It pulls what workers offer into the slots
of the store, and gives workers what they ask for by hash. The engine's memory that it expects is
one block here, which nobody uses. Nothing is written by this thread: it only says what is too old.
"""

from __future__ import annotations

import threading
from dataclasses import replace

import numpy as np

from common.clock import Clock
from common.config import KvConfig
from common.kv.daemon_link.side_channel import DaemonSideChannel
from common.kv.layout import Geometry, HostMemory
from common.kv.messages import KvCopied, KvDone, KvStatus
from common.kv.peers.channel import WorkerIdentity
from common.kv.service import KvService
from common.kv.store.side import StoreSize
from common.kv.store.table import StoreCounts, StoreTable
from common.messages import Capacity, Layout
from services.pool.holdings import Holdings


class PoolStore:
    """KV of one layout."""

    def __init__(
        self, identity: WorkerIdentity, config: KvConfig, layout: Layout, address: str, clock: Clock
    ) -> None:
        """`address`: of the side channel to the KV thread. Raises ValueError for a layout that no
        worker has, or of which the memory holds no block."""
        slots = slots_of(config, layout)
        self.capacity = Capacity(
            block_tokens=layout.block_tokens,
            kv_blocks=slots,
            kv_block_bytes=layout.block_bytes,
            max_model_len=0,
            max_num_seqs=0,
            pull_blocks=slots,
            kv_layers=layout.layers,
        )
        self.kv_address = ""
        self.holdings = Holdings(slots)
        self.table = StoreTable(slots, config.store.ttl_s, guard=threading.RLock())
        self._clock = clock
        self._side = DaemonSideChannel(address)
        self._service = KvService(
            identity,
            config.by_block(),
            _one_block(layout),
            address,
            store=StoreSize(slots, config.store.ttl_s),
        )

    def open(self) -> None:
        """Blocks until the listener is up. Raises BatonError when UCX cannot be set up."""
        self.kv_address = self._service.start()
        self._service.share_store(self.table)

    def attach(self) -> None:
        """Once, on the daemon's loop: the KV thread's reports are delivered there."""
        self._side.start(self._on_done, self._on_copied)

    def update(self) -> KvStatus | None:
        """Several times a second: drops what is too old, and learns what is held. Raises BatonError
        when the KV thread has failed."""
        self._service.drain()
        self.table.expire(self._clock.monotonic())
        self.holdings.update(self.table.changes())
        side = self._service.store
        if side is not None:
            side.note(replace(self.table.counts), StoreCounts())
        return self._side.status

    def connect(self, kv_address: str) -> None:
        """To a worker's listener, before it offers the first blocks."""
        self._service.connect(kv_address)

    def close(self) -> None:
        self._service.stop()
        self._side.close()

    def _on_copied(self, copied: KvCopied) -> None:
        """What has gone again by now is not listed, because the table tells of that once."""
        self.holdings.add(copied.hashes, copied.names, lambda name: name in self.table)

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
