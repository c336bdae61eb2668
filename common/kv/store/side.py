"""Copies between a store's arena and the engine's blocks, on the KV thread.

Theory of operation: the engine's thread says what to save and what to load, and never waits for it.
The KV thread makes one copy in each turn of its loop, loads first, so that handoffs go on in
between. Before the engine overwrites blocks, its thread withdraws them: a save that has not begun
is given up, and one in progress, a single block, is waited for. A load ends with its last block, or
with the first that is damaged; the engine then computes the prompt itself.
"""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field

from common.kv.handoff.counters import HandoffCounters
from common.kv.store.arena import Arena
from common.kv.store.table import BlockCopy, StoreCounts


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
    held: dict[str, int] = field(default_factory=dict)
    """For pulls that failed, how many of their leading blocks the source had."""

    def joined(self, other: StoreResults) -> StoreResults:
        """Those of two ranks."""
        return StoreResults(
            self.written + other.written,
            self.dropped + other.dropped,
            self.damaged + other.damaged,
            self.loaded + other.loaded,
            self.failed + other.failed,
            self.held | other.held,
        )

    def __bool__(self) -> bool:
        return bool(self.written or self.dropped or self.damaged or self.loaded or self.held)


@dataclass(slots=True)
class _Load:
    request_id: str
    copies: deque[BlockCopy]


class StoreSide:
    """The store of one rank. The engine's thread calls all methods."""

    def __init__(
        self,
        arena: Arena,
        counters: HandoffCounters,
        loop: asyncio.AbstractEventLoop,
        on_ended: Callable[[], None],
    ) -> None:
        """`on_ended` is called on the KV thread when a load has ended, and when all has."""
        self._arena = arena
        self._counters = counters
        self._loop = loop
        self._on_ended = on_ended
        #: Saves that have not begun, by the engine's block.
        self._saves: dict[int, BlockCopy] = {}
        self._loads: deque[_Load] = deque()
        #: The block that is being saved.
        self._saving: int | None = None
        self._results = StoreResults()
        #: Guards all of the above, for moments; told when a block is saved. A lock that is held
        #: while a block is saved would not do: the next save could take it before who waits.
        self._guard = threading.Condition()
        self._working = False
        self._asked = 0

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
        with self._guard:
            self._loads.append(_Load(request_id, deque(copies)))
        self._loop.call_soon_threadsafe(self._wake)

    def note(self, counts: StoreCounts) -> None:
        """What the table counts, to be reported with what is counted here."""
        counters = self._counters
        counters.store_held, counters.store_skipped = counts.held, counts.skipped
        counters.store_evicted, counters.store_expired = counts.evicted, counts.expired

    def drain(self) -> StoreResults:
        """What ended since the last call."""
        with self._guard:
            results, self._results = self._results, StoreResults()
        self._asked -= len(results.written) + len(results.dropped) + len(results.loaded)
        return results

    def _wake(self) -> None:
        if not self._working:
            self._working = True
            self._loop.call_soon(self._work)

    def _work(self) -> None:
        if self._load_block() or self._save_block():
            self._loop.call_soon(self._work)
        else:
            self._working = False
            self._on_ended()

    def _load_block(self) -> bool:
        """Returns False if there is nothing to load."""
        with self._guard:
            if not self._loads:
                return False
            load = self._loads[0]
        copy = load.copies.popleft()
        undamaged = self._arena.read(copy)
        self._counters.store_read += undamaged
        self._counters.store_damaged += not undamaged
        with self._guard:
            if not undamaged:
                self._results.damaged.append(copy.slot)
                self._results.failed.append(load.request_id)
            ended = not undamaged or not load.copies
            if ended:
                self._results.loaded.append(load.request_id)
                self._loads.popleft()
        if ended:
            self._on_ended()
        return True

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
