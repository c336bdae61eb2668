"""What goes to the disk below a store, and what lies there.

Theory of operation: every block that the memory of the store has got is written to the disk in its
turn, as many at a time as the backlog allows; one that is dropped from memory before its turn is
skipped. The disk has a table of its own, with the same rules. A block that a prompt gets from the
disk is saved to memory like one that was computed, and is not written again. After a restart the
headers in the segment files tell what is there. They are read on a thread of their own, and until
that has ended nothing is found on the disk and nothing is written.

What the disk came to hold, and holds no more, is told a part at a time, with the names by which
routers know the blocks: what a restart finds may be much. A disk that has failed holds nothing.

In a worker the scheduler half of the connector drives this, from step to step; in a pool its daemon
does. Whoever drives it does no I/O.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice

from common.clock import Clock
from common.config import StoreConfig
from common.kv.store.disk import DISK_ANSWER_S
from common.kv.store.record import Record, Spill, record_bytes
from common.kv.store.results import StoreResults
from common.kv.store.segments import Segments
from common.kv.store.table import BlockName, StoreCounts, StoreTable

FUTURE_S = 60.0
"""A record that was used so much later than now is not believed."""
TOLD_MAX = 4_096
"""Blocks in one answer of `DiskStore.changes`."""
USE_PARTS = 8
"""The disk is told of a use when this part of the time to live has passed since the last one."""


def disk_slots(config: StoreConfig, block_bytes: int, ranks: int) -> int:
    """How many blocks the segment files of each rank hold. `block_bytes`: of one rank."""
    return (config.disk_mib << 20) // (record_bytes(block_bytes) * ranks)


class DiskIndex:
    """Reads, on a thread, what lies on the disks of all ranks."""

    def __init__(self, ranks: Sequence[Segments]) -> None:
        self._ranks = ranks
        self._found: dict[int, Record] | None = None
        self._thread = threading.Thread(target=self._read, name="baton-kv-index", daemon=True)
        self._thread.start()

    def __call__(self) -> dict[int, Record] | None:
        """What is in the slots; None before it is known."""
        return self._found

    def _read(self) -> None:
        try:
            self._found = held_by_all([segments.scan() for segments in self._ranks])
        except OSError:  # whoever opens the segments tells what is wrong
            self._found = {}


def held_by_all(ranks: Sequence[Iterable[tuple[int, Record]]]) -> dict[int, Record]:
    """The slots in which every rank has the same block."""
    first, *others = ranks
    held = dict(first)
    for rank in others:
        other = dict(rank)
        held = {
            at: record
            for at, record in held.items()
            if at in other and other[at].name == record.name
        }
    return held


class DiskStore:
    """One per engine, or per pool."""

    def __init__(
        self,
        memory: StoreTable,
        disk: StoreTable,
        index: Callable[[], dict[int, Record] | None],
        backlog_blocks: int,
        ttl_s: float,
        clock: Clock,
    ) -> None:
        """`memory`: the table of the store in memory. `disk`: an empty table. `index`: what the
        disk held at the start, once it is known."""
        self._memory = memory
        self._disk = disk
        self._index = index
        self._backlog_blocks = max(1, backlog_blocks)
        self._ttl_s = ttl_s
        self._clock = clock
        self._known = False
        self._off = False
        #: Slots in memory whose block has not been planned for the disk, in order, with the name by
        #: which routers know it.
        self._waiting: dict[int, tuple[BlockName, bytes]] = {}
        #: Slots of the disk that are being written.
        self._writing: set[int] = set()
        #: When the disk was told last that a slot was used.
        self._told: dict[int, float] = {}
        self._used: list[int] = []
        #: Slots of the disk whose blocks the next process is not to find.
        self._dropped: list[int] = []
        #: Blocks of which it is not told yet whether the disk has them, at most once each.
        self._untold: dict[BlockName, None] = {}
        #: The names by which routers know blocks that are being written or not told yet.
        self._ours: dict[BlockName, bytes] = {}
        #: Until when it is waited for what the disk held at the start.
        self._known_by = clock.monotonic() + DISK_ANSWER_S

    @property
    def counts(self) -> StoreCounts:
        return self._disk.counts if not self._off else StoreCounts()

    @property
    def pending(self) -> bool:
        """Whether steps are needed to write what waits and to learn that it is written."""
        waits = self._known and (self._waiting or self._dropped)
        return not self._off and bool(self._writing or waits)

    @property
    def untold(self) -> bool:
        """Whether `changes` has something to tell, or will have before long, because it is read at
        the moment what the disk held at the start."""
        learns = not (self._known or self._off) and self._clock.monotonic() < self._known_by
        return learns or bool(self._untold)

    def find(self, names: Sequence[BlockName]) -> list[int]:
        """As `StoreTable.find`."""
        self._learn()
        return self._disk.find(names, self._clock.monotonic()) if not self._off else []

    def begin_read(self, slots: Sequence[int]) -> list[int]:
        """As `StoreTable.begin_read`."""
        return self._disk.begin_read(slots)

    def end_read(self, slots: Sequence[int]) -> None:
        self._disk.end_read(slots, self._clock.monotonic())

    def saved(self, slot: int, name: BlockName, ours: bytes = b"") -> None:
        """This block is being saved to this slot in memory. `ours`: as in `Record`."""
        self._disk.counts.skipped += self._waiting.pop(slot, None) is not None
        self._waiting[slot] = name, ours

    def mark_used(self, names: Sequence[BlockName]) -> None:
        """A request has used these blocks, in the order of its prompt."""
        now = self._clock.monotonic()
        self._disk.mark_used(names, now)
        for name in names:
            for at in self._disk.find([name], now):
                if now - self._told.get(at, now - self._ttl_s) >= self._ttl_s / USE_PARTS:
                    self._told[at] = now
                    self._used.append(at)

    def step(self) -> tuple[list[Spill], list[int], list[int]]:
        """Returns what is to be written to the disk now, the slots of the disk whose blocks were
        used, and those whose blocks were dropped."""
        self._learn()
        if self._off or not self._known:
            return [], [], []
        self._disk.expire(self._clock.monotonic())
        used, self._used = self._used, []
        dropped, self._dropped = self._dropped, []
        return list(self._spills()), used, dropped

    def changes(self) -> dict[BlockName, bytes | None]:
        """Blocks that the disk may have come to hold or to hold no more since this was told, or the
        first ones if they are many: the name by which routers know a block that is held now, empty
        if they know it by none, and None for one that is not."""
        self._untold |= dict.fromkeys(self._disk.changes())
        told: dict[BlockName, bytes | None] = {}
        for name in islice(self._untold, TOLD_MAX):
            held = not self._off and name in self._disk
            told[name] = self._ours.get(name, b"") if held else None
        for name in told:
            del self._untold[name]
            self._ours.pop(name, None)
        return told

    def ended(self, results: StoreResults) -> None:
        """What the ranks report of their copies."""
        now = self._clock.monotonic()
        for slots, whole in ((results.spilled, True), (results.unspilled, False)):
            for at in slots:
                if self._disk.end_write(at, now, whole=whole):
                    self._writing.remove(at)
                    self._told[at] = now
                    self._disk.counts.skipped += not whole
                    if whole and self._disk.name_in(at) is None:
                        self._dropped.append(at)
        for at in results.disk_damaged:
            self._disk.damaged(at)
        if results.dropped_ends:
            self._dropped += self._disk.drop(self._disk.ending(results.dropped_ends))
        self.mark_used(results.used)
        if results.disk_off and not self._off:
            self._off = True
            self._untold |= dict.fromkeys(self._disk.ending())

    def _learn(self) -> None:
        """Takes over what the disk held at the start, once that is known."""
        found = None if self._known else self._index()
        if found is None:
            return
        self._known = True
        now, unix = self._clock.monotonic(), self._clock.unix_ms() / 1000
        left = {at: record.used_at + self._ttl_s - unix for at, record in found.items()}
        live = [at for at in found if 0 < left[at] <= self._ttl_s + FUTURE_S]
        self._disk.restore((at, found[at].name, now + left[at], found[at].owner) for at in live)
        self._ours |= {found[at].name: found[at].ours for at in live if found[at].ours}
        self._untold |= dict.fromkeys(found[at].name for at in live)
        self._disk.counts.expired += len(found) - len(live)

    def _spills(self) -> Iterator[Spill]:
        now = self._clock.monotonic()
        while self._waiting and len(self._writing) < self._backlog_blocks:
            slot, (name, ours) = next(iter(self._waiting.items()))
            here = self._memory.name_in(slot) == name
            if here and self._memory.find([name], now) != [slot]:
                return
            if here and name not in self._disk:
                owner = self._memory.owner_in(slot)
                at = self._disk.begin_write(name, owner)
                if at is None:
                    return
                self._writing.add(at)
                self._ours[name] = ours
                yield Spill(slot, at, name, ours, owner)
            self._disk.counts.skipped += not here
            del self._waiting[slot]
