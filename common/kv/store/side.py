"""Copies between a store's arena and the engine's blocks, on the KV thread.

Theory of operation: the engine's thread says what to save and what to load, and never waits for it.
The KV thread begins one copy in each turn of its loop, loads first, so that handoffs go on in
between. In host memory the copy is over in that turn. On a card it runs by itself, a few at a time,
after the work of the engine that it is to follow. Before the engine overwrites blocks, its thread
withdraws them: a save that has not begun is given up. One that is being begun, a single block, is
waited for, and on a card the engine's next work is ordered after all that have begun. A load ends
with its last block, or with the first that is damaged, when nothing is copied to its blocks any
more; the engine then computes the prompt itself.

A block goes to the disk in two steps: the KV thread copies it to a buffer, after all saves, and the
disk's thread writes that. A block of a load comes the other way round. What the KV thread has no
buffer for waits, and handoffs go on.
"""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass

import structlog

from common.identity import AttemptKey
from common.kv.checksum.definition import Bytes
from common.kv.handoff.counters import HandoffCounters
from common.kv.layout import Mark
from common.kv.store.arena import Arena
from common.kv.store.disk import DISK_ANSWER_S, Disk, DiskPlace
from common.kv.store.promotions import Promotions
from common.kv.store.record import Record, Spill
from common.kv.store.results import StoreResults, StoreSize
from common.kv.store.table import BlockCopy, Medium, StoreCounts, StoreTable
from common.messages import KvHolder
from common.telemetry.log import Logger

RUNNING_MAX = 8
"""Copies between the arena and a card at one time. Handoffs wait for those before theirs."""


@dataclass(slots=True, eq=False)
class _Load:
    request_id: str
    #: Blocks that come out of the arena, and how many the disk has not answered.
    copies: deque[BlockCopy]
    awaited: int
    #: After which its blocks may be written; None: now.
    after: Mark | None
    #: Copies to its blocks that have begun and have not ended.
    running: int = 0
    #: No more copies begin.
    failed: bool = False
    #: Its end is told.
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
        #: Saves that have not begun, by the engine's block, and what each is to follow.
        self._saves: dict[int, tuple[BlockCopy, Mark | None]] = {}
        self._spills: deque[Spill] = deque()
        #: The block of which a save is being begun.
        self._saving: int | None = None
        self._results = StoreResults()
        #: Guards all of the above, for moments; told when a save has begun. A lock that is held
        #: meanwhile would not do: the next save could take it before who waits.
        self._guard = threading.Condition()
        self._loads: deque[_Load] = deque()
        #: Copies out of the arena, or to it, that have not ended.
        self._running = 0
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

    def save(self, copies: Sequence[BlockCopy], after: Mark | None = None) -> None:
        """These blocks hold their final KV, once `after` has passed."""
        self._asked += len(copies)
        with self._guard:
            self._saves.update((copy.block_id, (copy, after)) for copy in copies)
        self._loop.call_soon_threadsafe(self._wake)

    def withdraw(self, block_ids: Collection[int]) -> None:
        """The engine takes these blocks back. When this returns, none of them is read any more, or,
        on a card, none will be when what the caller gives to the card next begins."""
        with self._guard:
            for block_id in block_ids:
                save = self._saves.pop(block_id, None)
                if save is not None:
                    self._results.dropped.append(save[0].slot)
            self._guard.wait_for(lambda: self._saving not in block_ids)
        self._arena.order_after_copies()

    def load(self, request_id: str, copies: Sequence[BlockCopy], after: Mark | None = None) -> None:
        """Fills blocks that are this request's alone, once `after` has passed."""
        self._asked += 1
        stored = deque(copy for copy in copies if copy.medium is Medium.RAM)
        on_disk = [copy for copy in copies if copy.medium is Medium.DISK]
        load = _Load(request_id, stored, len(on_disk), after)
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
        return Disk(place, self._arena, self._loop, self._on_disk_failed)

    def _wake(self) -> None:
        if not self._working:
            self._working = True
            self._loop.call_soon(self._work)

    def _work(self) -> None:
        copies = self._running < RUNNING_MAX and (self._load_block() or self._save_block())
        if copies or self._spill_block():
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
        if not load.copies:
            self._loads.popleft()
        load.running += 1
        self._running += 1
        self._arena.read(copy, load.after, lambda whole: self._on_loaded(load, copy, whole=whole))
        return True

    def _on_loaded(self, load: _Load, copy: BlockCopy, *, whole: bool) -> None:
        """A block came out of the arena. `whole`: undamaged."""
        self._running -= 1
        self._counters.store_read += whole
        self._counters.store_damaged += not whole
        self.on_read(copy.slot)
        if not whole:
            with self._guard:
                self._results.damaged.append(copy.slot)
        self._end_copy(load, whole=whole)
        self._wake()

    def _end_copy(self, load: _Load, *, whole: bool) -> None:
        """A copy to its blocks has ended."""
        load.running -= 1
        if whole:
            self._end_load(load)
        else:
            self._fail(load)

    def _fail(self, load: _Load) -> None:
        """Nothing of it is copied any more, but for what has begun."""
        load.failed = True
        load.copies.clear()
        if load in self._loads:
            self._loads.remove(load)
        self._end_load(load)

    def _end_load(self, load: _Load) -> None:
        """Tells its end if it has come."""
        waits = not load.failed and (load.copies or load.awaited)
        if waits or load.running or load.over:
            return
        load.over = True
        with self._guard:
            if load.failed:
                self._results.failed.append(load.request_id)
            self._results.loaded.append(load.request_id)
        self._on_ended()

    def _begin(self, load: _Load, on_disk: Sequence[BlockCopy]) -> None:
        """The disk is asked first: of a load that fails there nothing is copied."""
        self._read_disk(load, on_disk)
        if load.copies:
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

            disk.read(copy.slot, answered)

    def _check(self, load: _Load) -> None:
        """Gives up a load whose disk hangs. No more is copied to its blocks."""
        if load.failed or load.over:
            return
        left = max(load.asked, self._answered) + DISK_ANSWER_S - self._loop.time()
        if left > 0:
            self._loop.call_later(left, self._check, load)
            return
        self._on_disk_failed(f"the disk of the store answers nothing for {DISK_ANSWER_S:.0f} s")
        self._fail(load)

    def _place(
        self, load: _Load, copy: BlockCopy, buffer: Bytes | None, record: Record | None
    ) -> None:
        """The disk has answered."""
        disk = self._disk
        assert disk is not None
        load.awaited -= 1
        if buffer is None:
            self._fail(load)
            return
        if load.failed:
            disk.give_back(buffer)
            return

        def placed(whole: bool) -> None:
            disk.give_back(buffer)
            self._counters.store_disk_read += whole
            self._counters.store_disk_bytes_per_s = round(disk.read_bytes_per_s)
            if not whole:
                self._counters.store_disk_damaged += 1
                with self._guard:
                    self._results.disk_damaged.append(copy.slot)
            self._end_copy(load, whole=whole)

        load.running += 1
        self._arena.place(copy, buffer, record, load.after, placed)

    def _save_block(self) -> bool:
        """Returns False if there is nothing to save."""
        with self._guard:
            if not self._saves:
                return False
            copy, after = self._saves.pop(next(iter(self._saves)))
            self._saving = copy.block_id
        self._running += 1
        self._arena.write(copy, after, lambda: self._on_saved(copy))
        with self._guard:
            self._saving = None
            self._guard.notify()
        return True

    def _on_saved(self, copy: BlockCopy) -> None:
        self._running -= 1
        with self._guard:
            self._results.written.append(copy.slot)
        self._counters.store_written += 1
        self._wake()

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
