"""Copies between an arena and an engine's memory: in the host, where they are over at once, and
those of a store's side on a thread of its own."""

from __future__ import annotations

import threading

from common.kv.checksum.definition import Bytes
from common.kv.store.arena import Arena
from common.kv.store.record import Record
from common.kv.store.results import StoreResults
from common.kv.store.side import StoreSide
from common.kv.store.table import BlockCopy

WAIT_S = 30.0


def write(arena: Arena, copy: BlockCopy) -> None:
    """From the engine's block to the slot."""
    ended: list[None] = []
    arena.write(copy, None, lambda: ended.append(None))
    assert len(ended) == 1


def read(arena: Arena, copy: BlockCopy) -> bool:
    """From the slot to the engine's block. Returns what was told of it."""
    told: list[bool] = []
    arena.read(copy, None, told.append)
    (whole,) = told
    return whole


def place(arena: Arena, copy: BlockCopy, data: Bytes, record: Record | None) -> bool:
    """As `read`, from what was on a disk."""
    told: list[bool] = []
    arena.place(copy, data, record, None, told.append)
    (whole,) = told
    return whole


def all_results(side: StoreSide, ended: threading.Semaphore) -> StoreResults:
    """All that ends, once nothing is left to do. `ended`: released each time the side says that
    something has."""
    total = StoreResults()
    while side.busy:
        assert ended.acquire(timeout=WAIT_S)
        total = total.joined(side.drain())
    return total
