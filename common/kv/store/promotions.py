"""Blocks that come from the disk of a store back to its memory, because others ask for them, or a
request that is still in the queue probably will.

Theory of operation: a pull is served out of memory alone, and a prefetch fills it. What it wants
and only the disk has is first read to slots of the memory, which are written as for any new block,
so that they cannot be found before their digest was judged. What the memory has of the same pull is
kept meanwhile. A block that is being read for one pull is not read again for another, which waits
for it. A block that is damaged, or for which there is no slot, is left out: the pull then gets what
is there. A disk that answers nothing for a while is given up, so that no slot waits for ever. What
is read ahead of need lets all go first that somebody waits for.

It runs on the KV thread. Both tables have locks, because their owner is on another thread.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

from common.kv.checksum.definition import Bytes
from common.kv.handoff.counters import HandoffCounters
from common.kv.store.arena import Arena
from common.kv.store.disk import DISK_ANSWER_S, Disk
from common.kv.store.record import Record
from common.kv.store.slots import HASH_END_BYTES
from common.kv.store.table import BlockName, StoreTable

USED_MAX = 65_536
"""Blocks whose use waits to be told; what is over that is told with its next use."""


@dataclass(slots=True, eq=False)
class _Wanted:
    """What one pull waits for."""

    then: Callable[[], None]
    #: Its blocks that are being read.
    awaited: set[BlockName] = field(default_factory=set)
    #: The slots of its blocks that the memory had, which are kept.
    kept: list[int] = field(default_factory=list)


@dataclass(slots=True)
class _Read:
    """One block that is being read, from its slot on the disk to its slot in memory."""

    disk_slot: int
    slot: int
    wanted: list[_Wanted] = field(default_factory=list)


class Promotions:
    """`memory` and `on_disk` are the tables of the two tiers."""

    def __init__(
        self,
        arena: Arena,
        disk: Disk,
        tables: tuple[StoreTable, StoreTable],
        counters: HandoffCounters,
        loop: asyncio.AbstractEventLoop,
        on_failed: Callable[[str], None],
    ) -> None:
        """`tables`: of the memory and of the disk. `on_failed`: as in `Disk`."""
        self._arena = arena
        self._disk = disk
        self._memory, self._on_disk = tables
        self._counters = counters
        self._loop = loop
        self._on_failed = on_failed
        self._reading: dict[BlockName, _Read] = {}
        #: What was used and is on the disk, until its owner asks.
        self._used: dict[BlockName, None] = {}
        #: When the disk was asked first, or answered last, by the loop's clock.
        self._heard = 0.0
        self._check_timer: asyncio.TimerHandle | None = None

    def __contains__(self, name: object) -> bool:
        """Whether the disk has this block."""
        return not self._counters.store_disk_off and name in self._on_disk

    def ending(self, ends: Iterable[bytes]) -> dict[bytes, BlockName]:
        """The blocks on the disk whose hashes end so, by these ends."""
        found = self._on_disk.ending(ends) if not self._counters.store_disk_off else []
        return {name.block_hash[-HASH_END_BYTES:]: name for name in found}

    def begin(
        self, names: Sequence[BlockName], then: Callable[[], None], *, ahead: bool = False
    ) -> bool:
        """Brings the leading ones of these blocks to memory, and calls `then` once when none of
        them is being read any more. False if nothing of them is to be read. `ahead`: nobody waits
        for it."""
        wanted, now = _Wanted(then), self._loop.time()
        with self._memory.guard:
            for name in names:
                if name not in self._reading:
                    kept = self._memory.take([name], now)
                    wanted.kept += kept
                    if kept:
                        continue
                    if name in self._memory or not self._read(name, now, ahead=ahead):
                        break
                self._reading[name].wanted.append(wanted)
                wanted.awaited.add(name)
        if not wanted.awaited:
            self._memory.end_read(wanted.kept, now)
        return bool(wanted.awaited)

    def note_used(self, names: Sequence[BlockName]) -> None:
        """These blocks were used, in the order of their prompt."""
        with self._memory.guard:
            for name in names:
                if name in self and len(self._used) < USED_MAX:
                    self._used[name] = None

    def take_used(self) -> list[BlockName]:
        """What `note_used` was told since the last call. The owner's thread calls this."""
        with self._memory.guard:
            used, self._used = self._used, {}
        return list(used)

    def _read(self, name: BlockName, now: float, *, ahead: bool) -> bool:
        """Begins to read a block. False if that cannot be."""
        found = self._on_disk.take([name], now) if name in self else []
        slot = None
        if found:
            slot = self._memory.begin_write(name, self._on_disk.owner_in(found[0]))
        if slot is None:
            self._on_disk.end_read(found, now)
            return False
        read = self._reading[name] = _Read(found[0], slot)

        def answered(buffer: Bytes | None, record: Record | None) -> None:
            self._on_read(name, buffer, record)

        self._disk.read(read.disk_slot, answered, ahead=ahead)
        if self._check_timer is None:
            self._heard = self._loop.time()
            self._check_timer = self._loop.call_later(DISK_ANSWER_S, self._check)
        return True

    def _on_read(self, name: BlockName, buffer: Bytes | None, record: Record | None) -> None:
        self._heard = self._loop.time()
        read = self._reading.get(name)
        whole = False
        if buffer is not None:
            whole = read is not None and self._arena.fill(read.slot, name, buffer, record)
            self._disk.give_back(buffer)
        if read is None:
            return
        if buffer is not None and not whole:
            self._counters.store_disk_damaged += 1
            self._on_disk.damaged(read.disk_slot)
        self._counters.store_disk_read += whole
        self._counters.store_disk_bytes_per_s = round(self._disk.read_bytes_per_s)
        self._end(name, whole=whole)

    def _end(self, name: BlockName, *, whole: bool) -> None:
        read, now = self._reading.pop(name), self._loop.time()
        self._on_disk.end_read([read.disk_slot], now)
        self._memory.end_write(read.slot, now, whole=whole)
        for wanted in read.wanted:
            wanted.awaited.remove(name)
            if not wanted.awaited:
                self._memory.end_read(wanted.kept, now)
                wanted.then()

    def _check(self) -> None:
        """Gives up a disk that hangs: what it still answers is not used any more."""
        self._check_timer = None
        if not self._reading:
            return
        left = max(self._heard, self._disk.heard) + DISK_ANSWER_S - self._loop.time()
        if left > 0:
            self._check_timer = self._loop.call_later(left, self._check)
            return
        self._on_failed(f"the disk of the store answers nothing for {DISK_ANSWER_S:.0f} s")
        for name in list(self._reading):
            self._end(name, whole=False)
