"""Which blocks of KV a worker's store holds, and in which slots of its arenas they lie.

Theory of operation: a block is named by its KV cache group and the engine's own hash, which covers
the block's tokens, all tokens before it, adapter, images and salt. Names are compared between
workers of one fingerprint only, so model, types and layout are equal. Every rank of the worker has
an arena with the same slots and makes the same copies, so one table serves them all: a block is
found only when all ranks have written it. What is read is kept until all its readers have ended.
What nobody reads is dropped when it has not been used for the time to live, or when a new block
needs its slot, least recently used first. In one use of a prompt's blocks the first counts as the
latest, because a block without those before it is of no use. An operator may pin blocks, of half of
the slots at most: these are neither dropped for want of room nor for their age.

The engine's thread decides what is written of the engine's blocks and what expires. The KV thread
takes blocks for other workers (`offers/pulls.py`), and writes those that others offered
(`offers/copies.py`), while the engine may make no step. So every method holds the table's lock, for
as long as a look-up takes, and what `find` has found may be gone when it is read. Whoever looks and
then writes by what he saw holds the lock over both.
"""

from __future__ import annotations

import enum
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import wraps
from typing import Concatenate, NamedTuple, ParamSpec, TypeVar

from common.kv.store.recency import Recency
from common.kv.store.slots import HASH_END_BYTES, READABLE, SLOT_TRANSITIONS, Slot, SlotState
from common.transitions import checked

AHEAD_MAX = 16_384
"""Blocks that may wait to be loaded ahead; of more, the first ones are not."""
Arguments = ParamSpec("Arguments")
Result = TypeVar("Result")


class BlockName(NamedTuple):
    """Names the KV of one block among workers of one fingerprint."""

    group: int
    """Number of the KV cache group."""
    block_hash: bytes
    """The engine's own."""


class Medium(enum.StrEnum):
    """What keeps the blocks of one tier of the store; each has a table and slots of its own."""

    RAM = "ram"
    DISK = "disk"


class BlockCopy(NamedTuple):
    """One copy between a tier and the engine's memory."""

    slot: int
    block_id: int
    """The engine's block."""
    name: BlockName
    medium: Medium = Medium.RAM


@dataclass(slots=True)
class StoreCounts:
    """Blocks, since the start of the worker."""

    held: int = 0
    """Now in the store."""
    evicted: int = 0
    """Dropped because their slot was needed."""
    expired: int = 0
    """Dropped because nobody used them for the time to live."""
    skipped: int = 0
    """Not stored, because the engine needed their memory before they were copied."""
    ahead: int = 0
    """Brought to the engine before the stream that needs them was there."""
    pinned: int = 0
    """Now in the store, and kept there by an operator."""


def _guarded(
    method: Callable[Concatenate[StoreTable, Arguments], Result],
) -> Callable[Concatenate[StoreTable, Arguments], Result]:
    """The method, under the table's lock."""

    @wraps(method)
    def guarded(table: StoreTable, /, *args: Arguments.args, **kwargs: Arguments.kwargs) -> Result:
        with table.guard:
            return method(table, *args, **kwargs)

    return guarded


class StoreTable:
    """The only owner of what a store holds. Instants are of one monotonic clock, in seconds."""

    def __init__(
        self,
        slots: int,
        ttl_s: float,
        ranks: int = 1,
        guard: AbstractContextManager[object] | None = None,
        *,
        share: float = 1.0,
    ) -> None:
        """`slots`: in the arena of each of the `ranks`. `guard`: a lock that its holder may take
        again; None where one thread uses the table. `share`: as in `Recency`."""
        self.counts = StoreCounts()
        self.guard = nullcontext() if guard is None else guard
        #: Blocks that a stream needs which is to go on here: the KV thread adds to the end of them,
        #: and the engine's thread takes them from the beginning, both without the lock.
        self.ahead: deque[BlockName] = deque(maxlen=AHEAD_MAX)
        #: What came to be held since `changes`, and what is not held any more (False).
        self._changed: dict[BlockName, bool] = {}
        self._ttl_s = ttl_s
        self._ranks = ranks
        self._slots = [Slot() for _ in range(slots)]
        self._free = list(range(slots - 1, -1, -1))
        self._by_name: dict[BlockName, int] = {}
        #: The ready slots, in the order in which they expire.
        self._unread = Recency(self._slots, share)
        #: Blocks that are held and kept. Their slots are not among the unread.
        self._pinned: set[BlockName] = set()

    @_guarded
    def __contains__(self, name: object) -> bool:
        """Whether it is held or being written."""
        return name in self._by_name

    def owner_in(self, at: int) -> bytes:
        """Whose block this slot holds."""
        return self._slots[at].owner

    def name_in(self, at: int) -> BlockName | None:
        """The block that this slot holds, or that is being written to it."""
        return self._slots[at].name

    @_guarded
    def find(self, names: Iterable[BlockName], now: float) -> list[int]:
        """The slots of the leading names that can be read. It has no side effects."""
        found = []
        for name in names:
            at = self._by_name.get(name)
            if at is None or not self._readable(self._slots[at], now):
                break
            found.append(at)
        return found

    @_guarded
    def take(self, names: Iterable[BlockName], now: float) -> list[int]:
        """As `find`, and keeps what it returns as `begin_read` does."""
        return self.begin_read(self.find(names, now))

    @_guarded
    def begin_write(self, name: BlockName, owner: bytes = b"") -> int | None:
        """A slot for a block of this owner that the table does not hold, to which every rank then
        copies it. None if every slot is being written or read, or is kept."""
        assert name not in self._by_name, "a block is written once"
        if not self._free:
            least = self._unread.next_for(owner)
            if least is None:
                return None
            self.counts.evicted += 1
            self._drop(least)
        at = self._free.pop()
        slot = self._slots[at]
        self._move(at, SlotState.WRITING)
        slot.name, slot.owner, slot.awaited, slot.whole = name, owner, self._ranks, True
        self._unread.take(owner)
        self._by_name[name] = at
        return at

    @_guarded
    def end_write(self, at: int, now: float, *, whole: bool) -> bool:
        """One rank has copied the block to this slot, or if not `whole` has not. Returns whether
        this was the last rank."""
        slot = self._slots[at]
        slot.awaited -= 1
        slot.whole &= whole
        if slot.awaited > 0:
            return False
        self._note(at, held=slot.whole)
        if slot.whole:
            self._become_ready(at, now)
            self.counts.held += 1
        else:
            self._forget(at)
        return True

    @_guarded
    def restore(self, blocks: Iterable[tuple[int, BlockName, float, bytes]]) -> None:
        """An empty table takes over what lies in these slots: the slot, the block, the instant at
        which it expires, and its owner. Of two slots with one block it takes the later one."""
        assert len(self._free) == len(self._slots), "this table is in use"
        latest: dict[BlockName, tuple[int, float, bytes]] = {}
        for at, name, expires, owner in sorted(blocks, key=lambda block: block[2]):
            latest.pop(name, None)
            latest[name] = (at, expires, owner)
        for name, (at, expires, owner) in latest.items():
            self._move(at, SlotState.WRITING)
            self._move(at, SlotState.READY)
            slot = self._slots[at]
            slot.name, slot.expires, slot.owner = name, expires, owner
            self._by_name[name] = at
            self._unread.take(owner)
            self._unread.use(at)
        self.counts.held = len(latest)
        self._free = [at for at in self._free if self._slots[at].state is SlotState.FREE]

    @_guarded
    def begin_read(self, slots: Sequence[int]) -> list[int]:
        """Keeps these slots, as `find` returned them, until `end_read`. Returns those that are
        kept: one that was found damaged since then is not."""
        kept = [at for at in slots if self._slots[at].state in READABLE]
        for at in kept:
            slot = self._slots[at]
            if slot.state is not SlotState.READING:
                self._move(at, SlotState.READING)
                self._unread.remove(at)
            slot.readers += 1
        return kept

    @_guarded
    def end_read(self, slots: Sequence[int], now: float, *, cold: bool = False) -> None:
        """The reader's copies of these slots have ended. `cold`: they are the next to go."""
        for at in reversed(slots):
            slot = self._slots[at]
            slot.readers -= 1
            if slot.readers == 0 and slot.state is SlotState.READING:
                self._become_ready(at, now)
                if cold and at in self._unread:
                    slot.expires = self._slots[next(iter(self._unread))].expires
                    self._unread.age(at)
            elif slot.readers == 0:
                self._forget(at)

    @_guarded
    def damaged(self, at: int) -> None:
        """A reader of this slot found it damaged: nobody finds it again. To be called before that
        reader's `end_read`."""
        if self._slots[at].state is SlotState.READING:
            self._hide(at)

    @_guarded
    def mark_used(self, names: Sequence[BlockName], now: float) -> None:
        """A request has used these blocks, in the order of its prompt."""
        for name in reversed(names):
            at = self._by_name.get(name)
            if at is not None and at in self._unread:
                self._unread.use(at)
                self._slots[at].expires = now + self._ttl_s

    @_guarded
    def pin(self, names: Iterable[BlockName]) -> int:
        """Keeps those of these blocks that are held, up to half of the slots over all that are
        pinned. Returns for how many there was no room. Idempotent."""
        refused = 0
        for name in names:
            at = self._by_name.get(name)
            if at is None or name in self._pinned or self._slots[at].state not in READABLE:
                continue
            if len(self._pinned) < len(self._slots) // 2:
                self._pinned.add(name)
                self._unread.remove(at)
            else:
                refused += 1
        self.counts.pinned = len(self._pinned)
        return refused

    @_guarded
    def unpin(self, names: Iterable[BlockName], now: float) -> None:
        """These blocks count as used now, and are kept like all others. Idempotent."""
        for name in names:
            if name in self._pinned:
                at = self._by_name[name]
                self._let_go(name)
                if self._slots[at].state is SlotState.READY:
                    self._slots[at].expires = now + self._ttl_s
                    self._unread.use(at)

    @_guarded
    def drop(self, names: Iterable[BlockName]) -> list[int]:
        """None of these blocks is found any more, pinned or not, and none that is being written
        will be. Returns the slots in which they were held."""
        held = []
        for name in names:
            at = self._by_name.get(name)
            state = self._slots[at].state if at is not None else SlotState.FREE
            if at is not None and state is SlotState.WRITING:
                self._slots[at].whole = False
            elif at is not None:
                held.append(at)
                (self._hide if state is SlotState.READING else self._drop)(at)
        return held

    @_guarded
    def ending(self, ends: Iterable[bytes] | None = None) -> list[BlockName]:
        """The blocks whose hashes end so, of those that are held or being written; in this
        order. All of them without `ends`."""
        known = {name.block_hash[-HASH_END_BYTES:]: name for name in self._by_name}
        return [known[end] for end in (known if ends is None else ends) if end in known]

    @_guarded
    def expire(self, now: float) -> None:
        """Drops what nobody has used for the time to live."""
        while self._unread:
            at = next(iter(self._unread))
            if self._slots[at].expires > now:
                return
            self.counts.expired += 1
            self._drop(at)

    @_guarded
    def check_invariants(self) -> None:
        """Raises AssertionError if the table contradicts itself."""
        by_state: dict[SlotState, set[int]] = {state: set() for state in SlotState}
        for at, slot in enumerate(self._slots):
            by_state[slot.state].add(at)
            assert (slot.name is None) == (slot.state is SlotState.FREE)
            assert (slot.readers > 0) == (slot.state in (SlotState.READING, SlotState.DAMAGED))
            assert (slot.awaited > 0) == (slot.state is SlotState.WRITING)
        assert sorted(self._free) == sorted(by_state[SlotState.FREE])
        pinned = {self._by_name[name] for name in self._pinned}
        assert len(self._pinned) == self.counts.pinned <= len(self._slots) // 2
        assert pinned <= by_state[SlotState.READY] | by_state[SlotState.READING]
        assert set(self._unread) == by_state[SlotState.READY] - pinned
        named = {at: self._slots[at].name for at in self._by_name.values()}
        assert {name: at for at, name in named.items()} == self._by_name
        held = by_state[SlotState.READY] | by_state[SlotState.READING]
        assert set(named) == held | by_state[SlotState.WRITING]
        assert self.counts.held == len(held)
        expiries = [self._slots[at].expires for at in self._unread]
        assert expiries == sorted(expiries)
        self._unread.check_invariants()

    @_guarded
    def changes(self) -> dict[BlockName, bool]:
        """By name, whether it is held now, of all that may have changed since the last call."""
        changed, self._changed = self._changed, {}
        return changed

    def _readable(self, slot: Slot, now: float) -> bool:
        if slot.state is SlotState.READY:
            return slot.expires > now or slot.name in self._pinned
        return slot.state is SlotState.READING

    def _become_ready(self, at: int, now: float) -> None:
        self._move(at, SlotState.READY)
        self._slots[at].expires = now + self._ttl_s
        if self._slots[at].name not in self._pinned:
            self._unread.use(at)

    def _let_go(self, name: BlockName | None) -> None:
        """Nobody keeps this block any more, if anybody did."""
        self._pinned.discard(name)
        self.counts.pinned = len(self._pinned)

    def _hide(self, at: int) -> None:
        """What is being read from this slot is not found any more."""
        self._move(at, SlotState.DAMAGED)
        self.counts.held -= 1
        self._note(at, held=False)
        name = self._slots[at].name
        assert name is not None
        self._let_go(name)
        del self._by_name[name]

    def _drop(self, at: int) -> None:
        """What is held in a ready slot goes."""
        self._unread.remove(at)
        self._let_go(self._slots[at].name)
        self.counts.held -= 1
        self._note(at, held=False)
        self._forget(at)

    def _note(self, at: int, *, held: bool) -> None:
        name = self._slots[at].name
        assert name is not None
        self._changed[name] = held

    def _forget(self, at: int) -> None:
        slot = self._slots[at]
        if slot.state is not SlotState.DAMAGED and slot.name is not None:
            del self._by_name[slot.name]
        self._move(at, SlotState.FREE)
        self._unread.give(slot.owner)
        slot.name = None
        self._free.append(at)

    def _move(self, at: int, new: SlotState) -> None:
        slot = self._slots[at]
        slot.state = checked(f"slot {at} of the store", SLOT_TRANSITIONS, slot.state, new)
