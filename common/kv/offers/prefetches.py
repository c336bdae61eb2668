"""Blocks of requests that still wait in the router's queue, in the memory of this worker's store,
on the KV thread.

Theory of operation: the router tells a worker which prompt it will probably get. What the memory of
the store lacks of it comes out of another worker's store, or where the order names none from the
disk below this one, in parts of a few blocks, one part at a time of all requests, and none is begun
while a handoff or a pull that somebody waits for is under way. The disk lets loads go first. What
has come is kept, as for a reader, until an engine reads it, so that what is stored meanwhile does
not push it out. All that is kept is a small share of the slots: what finds no room there waits
until an engine has read something, the next request first. Nothing is kept for long. What nobody
has read by then is the first to go.

A request that is here before all of its blocks are was prefetched too late: nothing more is begun
for it, and its engine loads, pulls or computes the rest. Nobody ever waits for a prefetch, so each
fault of one is only counted.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from common.identity import AttemptKey
from common.kv.handoff.counters import HandoffCounters
from common.kv.messages import (
    NAME_BYTES,
    OFFER_BLOCKS_MAX,
    PULL_HASH_BYTES,
    KvArrived,
    KvCopied,
    KvPrefetch,
)
from common.kv.offers.pulls import GROUP
from common.kv.store.table import BlockName, StoreTable
from common.messages import KvSource

PREFETCHES_MAX = 16
"""Requests."""
PART_BYTES = 8 << 20
"""Of the blocks of one part at most, or one block."""
KEPT_PART = 4
"""At most this part of the slots is kept."""
KEEP_S = 60.0
"""For so long at most after the order, and after the request has come."""
ARRIVED_KEEP_S = 10.0


class Fetches(Protocol):
    """What is used of `StoreCopies`."""

    @property
    def is_idle(self) -> bool: ...

    def fetch(
        self,
        source: KvSource,
        names: Sequence[BlockName],
        owner: bytes,
        ended: Callable[[], None],
    ) -> bool: ...


class Below(Protocol):
    """What is used of `Promotions`."""

    def begin(
        self, names: Sequence[BlockName], then: Callable[[], None], *, ahead: bool = False
    ) -> bool: ...


@dataclass(slots=True, eq=False)
class _Prefetch:
    source: KvSource | None
    source_blocks: int
    owner: bytes
    blocks: list[BlockName]
    #: By which routers know the blocks.
    names: list[bytes]
    #: When what is kept is let go. An instant.
    until: float
    #: How many leading blocks are done with, whether they came or not.
    done: int = 0
    #: Whether the next blocks wait for room.
    lacks_room: bool = False
    #: The slots of those that came and that nobody has read.
    kept: dict[int, None] = field(default_factory=dict)

    @property
    def complete(self) -> bool:
        return self.done >= len(self.blocks)


class StorePrefetches:
    """It runs on the KV thread. `table` is None until the owner of the store has made it."""

    def __init__(
        self,
        fetches: Fetches,
        block_bytes: int,
        slots: int,
        counters: HandoffCounters,
        clock: Callable[[], float],
        *,
        on_copied: Callable[[KvCopied], None],
    ) -> None:
        """`slots`: of the memory. `on_copied`: as in `StoreCopies`."""
        self._fetches = fetches
        self._part_blocks = max(1, min(OFFER_BLOCKS_MAX, PART_BYTES // block_bytes))
        self._kept_max = max(1, slots // KEPT_PART)
        self._counters = counters
        self._clock = clock
        self._on_copied = on_copied
        self.table: StoreTable | None = None
        #: What the store has on a disk; None without one.
        self.below: Below | None = None
        self._prefetches: dict[AttemptKey, _Prefetch] = {}
        #: Whether a part is under way.
        self._busy = False

    def __len__(self) -> int:
        """Requests of which something is to come or is kept."""
        return len(self._prefetches)

    @property
    def kept(self) -> int:
        """Slots that are kept."""
        return sum(len(prefetch.kept) for prefetch in self._prefetches.values())

    def on_order(self, message: KvPrefetch) -> None:
        """A second order of a request changes nothing."""
        key = (message.request_id, message.attempt)
        blocks = [BlockName(GROUP, part) for part in _split(message.hashes, PULL_HASH_BYTES)]
        names = _split(message.names, NAME_BYTES)
        if self.table is None or not blocks or len(names) != len(blocks):
            return
        if key in self._prefetches:
            return
        if len(self._prefetches) >= PREFETCHES_MAX:
            self._counters.prefetch_skipped += len(blocks)
            return
        source, until = (message.source, message.source_blocks), self._clock() + KEEP_S
        self._prefetches[key] = _Prefetch(*source, message.owner, blocks, names, until)
        self.tick()

    def on_arrived(self, message: KvArrived) -> None:
        """The request is here: what it lacks now comes to it in another way."""
        key = (message.request_id, message.attempt)
        prefetch = self._prefetches.get(key)
        if prefetch is None:
            return
        if not prefetch.complete:
            self._counters.prefetch_late += 1
            self._stop(prefetch)
        prefetch.until = min(prefetch.until, self._clock() + ARRIVED_KEEP_S)
        self._forget_if_over(key)

    def over(self, key: AttemptKey) -> None:
        """The request does not come. Idempotent."""
        prefetch = self._prefetches.pop(key, None)
        if prefetch is not None:
            self._let_go(prefetch)

    def on_read(self, slot: int) -> None:
        """An engine reads this slot, and keeps it for that."""
        for key, prefetch in list(self._prefetches.items()):
            if slot in prefetch.kept:
                assert self.table is not None
                del prefetch.kept[slot]
                self.table.end_read([slot], self._clock())
                self._counters.prefetch_used += 1
                self._forget_if_over(key)

    def tick(self) -> None:
        """Call several times a second: lets go what was kept for too long, and begins what may be
        begun."""
        now = self._clock()
        for key, prefetch in list(self._prefetches.items()):
            if prefetch.until <= now:
                self.over(key)
        for key, prefetch in list(self._prefetches.items()):
            while not (self._busy or prefetch.complete) and self._fetches.is_idle:
                self._begin_part(prefetch)
                if prefetch.lacks_room:
                    break
            self._forget_if_over(key)

    def _begin_part(self, prefetch: _Prefetch) -> None:
        """Gets the next blocks, or says that they wait for room, or that the rest is done with
        because nothing of it can be had."""
        assert self.table is not None
        first, part_blocks = prefetch.done, min(self._part_blocks, self._kept_max)
        part = prefetch.blocks[first : first + part_blocks]
        held = len(self.table.find(part, self._clock()))
        prefetch.lacks_room = not held and self.kept + len(part) > self._kept_max
        if held:
            self.table.mark_used(part[:held], self._clock())
            prefetch.done += held
        elif not prefetch.lacks_room:
            self._get(prefetch, part)

    def _get(self, prefetch: _Prefetch, part: list[BlockName]) -> None:
        """`part`: the next blocks, of which memory lacks the first. What the source has comes from
        there, because the router found that sooner than the disk."""
        assert self.table is not None
        source, first = prefetch.source, prefetch.done
        pulled = max(0, prefetch.source_blocks - first) if source is not None else 0
        part = part[:pulled] or part
        new = [name not in self.table for name in part]

        def ended() -> None:
            self._busy = False
            self._came(prefetch, first, new)

        begun, self._busy = False, True
        if source is not None and pulled:
            begun = self._fetches.fetch(source, part, prefetch.owner, ended)
        if not begun and self.below is not None:
            begun = self.below.begin(part, ended, ahead=True)
        if not begun:
            self._busy = False
            prefetch.done = len(prefetch.blocks)

    def _came(self, prefetch: _Prefetch, first: int, new: Sequence[bool]) -> None:
        """The part from this block on has come, or what could be had of it. `new`: which of its
        blocks memory lacked before."""
        assert self.table is not None
        now, came = self._clock(), []
        for number, is_new in enumerate(new, first):
            found = self.table.take([prefetch.blocks[number]], now)
            if not found or not is_new:
                self.table.end_read(found, now)
            if not found:
                prefetch.done = len(prefetch.blocks)
                break
            if is_new:
                prefetch.kept[found[0]] = None
                came.append(number)
        prefetch.done = max(prefetch.done, first + len(new))
        self._counters.prefetched += len(came)
        if came:
            hashes = b"".join(prefetch.blocks[number].block_hash for number in came)
            names = b"".join(prefetch.names[number] for number in came)
            self._on_copied(KvCopied(hashes=hashes, names=names))
        if prefetch not in self._prefetches.values():
            self._let_go(prefetch)
        self.tick()

    def _forget_if_over(self, key: AttemptKey) -> None:
        prefetch = self._prefetches.get(key)
        if prefetch is not None and prefetch.complete and not prefetch.kept and not self._busy:
            del self._prefetches[key]

    def _stop(self, prefetch: _Prefetch) -> None:
        """Nothing more is begun for it."""
        if prefetch.lacks_room:
            self._counters.prefetch_skipped += len(prefetch.blocks) - prefetch.done
        prefetch.done = len(prefetch.blocks)

    def _let_go(self, prefetch: _Prefetch) -> None:
        """What nobody has read is of no use any more."""
        assert self.table is not None or not prefetch.kept
        self._stop(prefetch)
        self._counters.prefetch_wasted += len(prefetch.kept)
        if self.table is not None:
            self.table.end_read(list(prefetch.kept), self._clock(), cold=True)
        prefetch.kept.clear()


def _split(joined: bytes, size: int) -> list[bytes]:
    return [joined[at : at + size] for at in range(0, len(joined), size)]
