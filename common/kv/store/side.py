"""Copies between a store's arena and the engine's blocks, on the KV thread.

Theory of operation: the engine's thread says what to save and what to load, and never waits for it.
The KV thread makes one copy in each turn of its loop, loads first, so that handoffs go on in
between. Before the engine overwrites blocks, its thread withdraws them: a save that has not begun
is given up, and one in progress, a single block, is waited for. A load ends with its last block, or
with the first that is damaged; the engine then computes the prompt itself.

A block goes to the disk in two steps: the KV thread copies it to a buffer, after all saves, and the
disk's thread writes that. A block of a load comes the other way round. What the KV thread has no
buffer for waits, and handoffs go on.
"""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field

import structlog

from common.identity import AttemptKey
from common.kv.checksum.definition import Bytes
from common.kv.handoff.counters import HandoffCounters
from common.kv.store.arena import Arena
from common.kv.store.disk import DISK_ANSWER_S, Disk, DiskPlace
from common.kv.store.promotions import Promotions
from common.kv.store.record import Record, Spill
from common.kv.store.table import BlockCopy, BlockName, Medium, StoreCounts, StoreTable
from common.messages import KvHolder
from common.telemetry.log import Logger


@dataclass(frozen=True, slots=True)
class StoreSize:
    """What the store of one rank consists of."""

    slots: int
    """Blocks in memory."""
    ttl_s: float
    disk: DiskPlace | None = None

    @property
    def told(self) -> dict[str, int]:
        """What others may pull, as in `KvListening`."""
        below = self.disk.slots if self.disk is not None else 0
        return {"pull_blocks": self.slots, "disk_blocks": below}


@dataclass(slots=True)
class StoreResults:
    """What ended on one rank."""

    written: list[int] = field(default_factory=list)
    """Slots that hold their block now."""
    dropped: list[int] = field(default_factory=list)
    """Slots whose save was withdrawn."""
    damaged: list[int] = field(default_factory=list)
    """Slots that did not hold what a load wanted of them."""
    loaded: list[str] = field(default_factory=list)
    """Requests whose load has ended, of which `failed` are a part."""
    failed: list[str] = field(default_factory=list)
    spilled: list[int] = field(default_factory=list)
    """Slots of the disk that hold their block now."""
    unspilled: list[int] = field(default_factory=list)
    """Slots of the disk to which their block was not written."""
    disk_damaged: list[int] = field(default_factory=list)
    """Slots of the disk that did not hold what a load wanted of them."""
    disk_off: bool = False
    """Whether the disk has failed, and is not used any more."""
    dropped_ends: list[bytes] = field(default_factory=list)
    """The ends of the hashes of blocks that an operator has dropped from memory."""
    held: dict[str, int] = field(default_factory=dict)
    """For pulls that failed, how many of their leading blocks the source had."""
    holders: dict[AttemptKey, KvHolder | None] = field(default_factory=dict)
    """Running streams whose blocks another holder than before is to have from now on, or nobody."""
    used: list[BlockName] = field(default_factory=list)
    """Blocks on the disk that other workers have got, in the order of their prompts."""

    def joined(self, other: StoreResults) -> StoreResults:
        """Those of two ranks."""
        return StoreResults(
            self.written + other.written,
            self.dropped + other.dropped,
            self.damaged + other.damaged,
            self.loaded + other.loaded,
            self.failed + other.failed,
            self.spilled + other.spilled,
            self.unspilled + other.unspilled,
            self.disk_damaged + other.disk_damaged,
            self.disk_off or other.disk_off,
            self.dropped_ends + other.dropped_ends,
            self.held | other.held,
            self.holders | other.holders,
            self.used + other.used,
        )

    def __bool__(self) -> bool:
        return self != StoreResults()


@dataclass(slots=True, eq=False)
class _Load:
    request_id: str
    #: Blocks that come out of the arena, and how many the disk has not answered.
    copies: deque[BlockCopy]
    awaited: int
    over: bool = False
    #: When the disk was asked, by the loop's clock.
    asked: float = 0.0


class StoreSide:
    """The store of one rank. The engine's thread calls all methods, except where they say other."""

    def __init__(
        self,
        arena: Arena,
        counters: HandoffCounters,
        loop: asyncio.AbstractEventLoop,
        on_ended: Callable[[], None],
        disk: DiskPlace | None = None,
    ) -> None:
        """`on_ended` is called on the KV thread when a load has ended, when all has, and when the
        counts have changed."""
        #: Is told on the KV thread which slots the engine reads.
        self.on_read: Callable[[int], None] = lambda slot: None  # noqa: ARG005
        self._arena = arena
        self._counters = counters
        self._loop = loop
        self._on_ended = on_ended
        #: Saves that have not begun, by the engine's block.
        self._saves: dict[int, BlockCopy] = {}
        self._spills: deque[Spill] = deque()
        #: The block that is being saved.
        self._saving: int | None = None
        self._results = StoreResults()
        #: Guards all of the above, for moments; told when a block is saved. A lock that is held
        #: while a block is saved would not do: the next save could take it before who waits.
        self._guard = threading.Condition()
        self._loads: deque[_Load] = deque()
        self._working = False
        self._asked = 0
        #: When the disk answered last, by the loop's clock.
        self._answered = 0.0
        #: What the tables counted last.
        self._noted = StoreCounts(), StoreCounts()
        self._disk = self._open(disk) if disk is not None else None

    @property
    def busy(self) -> bool:
        """Whether some results have not been drained."""
        return self._asked > 0

    def save(self, copies: Sequence[BlockCopy]) -> None:
        """These blocks hold their final KV."""
        self._asked += len(copies)
        with self._guard:
            self._saves.update((copy.block_id, copy) for copy in copies)
        self._loop.call_soon_threadsafe(self._wake)

    def withdraw(self, block_ids: Collection[int]) -> None:
        """The engine takes these blocks back. When this returns, none of them is read any more."""
        with self._guard:
            for block_id in block_ids:
                copy = self._saves.pop(block_id, None)
                if copy is not None:
                    self._results.dropped.append(copy.slot)
            self._guard.wait_for(lambda: self._saving not in block_ids)

    def load(self, request_id: str, copies: Sequence[BlockCopy]) -> None:
        """Fills blocks that are this request's alone."""
        self._asked += 1
        stored = deque(copy for copy in copies if copy.medium is Medium.RAM)
        on_disk = [copy for copy in copies if copy.medium is Medium.DISK]
        load = _Load(request_id, stored, len(on_disk))
        self._loop.call_soon_threadsafe(self._begin, load, on_disk)

    def spill(self, spills: Sequence[Spill], used: list[int], dropped: Sequence[int] = ()) -> None:
        """These blocks go to the disk; those in the slots `used` of the disk are used now, and
        those in `dropped` are not to be found by the next process."""
        self._asked += len(spills)
        with self._guard:
            self._spills.extend(spills)
        if self._disk is not None and (used or dropped):
            self._disk.forget(list(dropped))
            self._disk.mark_used(used)
        self._loop.call_soon_threadsafe(self._wake)

    def change_holder(self, key: AttemptKey, holder: KvHolder | None) -> None:
        """The engine's scheduler is to know, with the results, who gets the blocks of this running
        stream from now on. On the KV thread."""
        with self._guard:
            self._results.holders[key] = holder

    def note(self, counts: StoreCounts, disk: StoreCounts) -> None:
        """What the tables count, to be reported with what is counted here."""
        if (counts, disk) == self._noted:
            return
        self._noted, counters = (counts, disk), self._counters
        counters.store_held, counters.store_skipped = counts.held, counts.skipped
        counters.store_evicted, counters.store_expired = counts.evicted, counts.expired
        counters.store_pinned, counters.store_ahead = counts.pinned, counts.ahead
        counters.store_disk_held, counters.store_disk_skipped = disk.held, disk.skipped
        counters.store_disk_evicted, counters.store_disk_expired = disk.evicted, disk.expired
        self._loop.call_soon_threadsafe(self._on_ended)

    def forget(self, ends: Sequence[bytes]) -> None:
        """An operator has dropped the blocks whose hashes end so. On the KV thread."""
        with self._guard:
            self._results.dropped_ends.extend(ends)
        self._on_ended()

    def drain(self) -> StoreResults:
        """What ended since the last call."""
        with self._guard:
            results, self._results = self._results, StoreResults()
        self._asked -= len(results.written) + len(results.dropped) + len(results.loaded)
        self._asked -= len(results.spilled) + len(results.unspilled)
        return results

    def promotions(self, memory: StoreTable, on_disk: StoreTable) -> Promotions | None:
        """What brings blocks from the disk back to the slots, for an owner of both tables who is in
        this process. None without a disk. On the KV thread."""
        if self._disk is None:
            return None
        made = self._arena, self._disk, (memory, on_disk), self._counters, self._loop
        return Promotions(*made, self._on_disk_failed)

    def close(self) -> None:
        """The KV thread ends, and calls this."""
        self._arena.close()
        if self._disk is not None:
            self._disk.close()

    def _open(self, place: DiskPlace) -> Disk:
        return Disk(place, self._arena.block_bytes, self._loop, self._on_disk_failed)

    def _wake(self) -> None:
        if not self._working:
            self._working = True
            self._loop.call_soon(self._work)

    def _work(self) -> None:
        if self._load_block() or self._save_block() or self._spill_block():
            self._loop.call_soon(self._work)
        else:
            self._working = False
            self._on_ended()

    def _load_block(self) -> bool:
        """Returns False if there is nothing to load."""
        if not self._loads:
            return False
        load = self._loads[0]
        copy = load.copies.popleft()
        undamaged = self._arena.read(copy)
        self._counters.store_read += undamaged
        self._counters.store_damaged += not undamaged
        self.on_read(copy.slot)
        with self._guard:
            if not undamaged:
                self._results.damaged.append(copy.slot)
            if not undamaged or not load.copies:
                self._loads.popleft()
        self._copied(load, undamaged=undamaged)
        return True

    def _copied(self, load: _Load, *, undamaged: bool) -> None:
        """One block of this load has ended."""
        if undamaged and (load.copies or load.awaited):
            return
        load.over = True
        with self._guard:
            if not undamaged:
                self._results.failed.append(load.request_id)
                if load in self._loads:
                    self._loads.remove(load)
            self._results.loaded.append(load.request_id)
        self._on_ended()

    def _begin(self, load: _Load, on_disk: Sequence[BlockCopy]) -> None:
        """The disk is asked first: of a load that fails there nothing is copied."""
        self._read_disk(load, on_disk)
        if load.copies and not load.over:
            self._loads.append(load)
        self._wake()

    def _read_disk(self, load: _Load, copies: Sequence[BlockCopy]) -> None:
        disk = self._disk
        if not copies:
            return
        assert disk is not None, "nothing is found on a disk that is not there"
        load.asked = self._loop.time()
        self._loop.call_later(DISK_ANSWER_S, self._check, load)
        for copy in copies:

            def answered(
                buffer: Bytes | None, record: Record | None, copy: BlockCopy = copy
            ) -> None:
                self._answered = self._loop.time()
                self._place(load, copy, buffer, record)
                if buffer is not None:
                    disk.give_back(buffer)

            disk.read(copy.slot, answered)

    def _check(self, load: _Load) -> None:
        """Gives up a load whose disk hangs. Its blocks are not written to any more."""
        if load.over:
            return
        left = max(load.asked, self._answered) + DISK_ANSWER_S - self._loop.time()
        if left > 0:
            self._loop.call_later(left, self._check, load)
            return
        self._on_disk_failed(f"the disk of the store answers nothing for {DISK_ANSWER_S:.0f} s")
        self._copied(load, undamaged=False)

    def _place(
        self, load: _Load, copy: BlockCopy, buffer: Bytes | None, record: Record | None
    ) -> None:
        """The disk has answered."""
        load.awaited -= 1
        if load.over:
            return
        undamaged = buffer is not None and self._arena.place(copy, buffer, record)
        self._counters.store_disk_read += undamaged
        assert self._disk is not None
        self._counters.store_disk_bytes_per_s = round(self._disk.read_bytes_per_s)
        if buffer is not None and not undamaged:
            self._counters.store_disk_damaged += 1
            with self._guard:
                self._results.disk_damaged.append(copy.slot)
        self._copied(load, undamaged=undamaged)

    def _save_block(self) -> bool:
        """Returns False if there is nothing to save."""
        with self._guard:
            if not self._saves:
                return False
            copy = self._saves.pop(next(iter(self._saves)))
            self._saving = copy.block_id
        self._arena.write(copy)
        with self._guard:
            self._saving = None
            self._results.written.append(copy.slot)
            self._guard.notify()
        self._counters.store_written += 1
        return True

    def _spill_block(self) -> bool:
        """Returns False if there is nothing to spill, or no buffer for it."""
        if self._disk is None or not self._spills:
            return False
        buffer = self._disk.write_buffer()
        if buffer is None:
            return False
        with self._guard:
            spill = self._spills.popleft()
        digest = self._arena.copy_out(spill.slot, spill.name, buffer)
        if digest is None:
            self._disk.keep(buffer)
            self._spilled(spill, ok=False)
        else:
            self._disk.write(spill, digest, buffer, lambda ok: self._spilled(spill, ok=ok))
        return True

    def _spilled(self, spill: Spill, *, ok: bool) -> None:
        with self._guard:
            results = self._results
            (results.spilled if ok else results.unspilled).append(spill.disk_slot)
        self._counters.store_disk_written += ok
        self._wake()

    def _on_disk_failed(self, sentence: str) -> None:
        if self._counters.store_disk_off:
            return
        log: Logger = structlog.get_logger("baton")
        full = f"{sentence}; KV is not stored on disk any more until this worker restarts"
        log.error("store.disk_off", sentence=full)
        self._counters.store_disk_off = 1
        with self._guard:
            self._results.disk_off = True
        self._on_ended()


def open_store(
    arena: Arena,
    size: StoreSize,
    counters: HandoffCounters,
    loop: asyncio.AbstractEventLoop,
    on_ended: Callable[[], None],
) -> StoreSide:
    """On the KV thread."""
    counters.store_slots, counters.store_ttl_s = size.slots, round(size.ttl_s)
    counters.store_disk_slots = size.disk.slots if size.disk is not None else 0
    return StoreSide(arena, counters, loop, on_ended, size.disk)
