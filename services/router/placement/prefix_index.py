"""Which worker holds the KV of which prompt prefix, as far as the router knows.

Theory of operation: each known hash (`common.prefix`) has a bit mask of the workers that hold it,
one bit for each worker. One walk along a prompt's hashes, ANDing masks, then tells how much of the
prompt each worker has, whatever the number of workers. A worker drops out at the first block that
it lacks; that is exact, because an engine can use no block behind a gap. Where an engine has
several KV cache groups, each but one has an index of its own (`PlacementMemory.prefixes_of`), and
`common.blocks.usable_blocks` says how much of a prefix is of use. The hashes of one worker are
bounded by its KV blocks, those of all workers by `HASHES_MAX`; the oldest are forgotten first. The
index helps to choose and promises nothing: a worker may have evicted what it is listed with.

Two sources feed the index. A placement enters its prompt for both its workers at once, so that a
burst of one prefix stays together. A worker that reports its engine's KV events (`PrefixDelta`)
corrects that by what it really stored and removed.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Iterator, Sequence

HASHES_MAX = 1 << 20


class PrefixIndex:
    def __init__(self, hashes_max: int = HASHES_MAX) -> None:
        self._hashes_max = hashes_max
        self._holders: dict[bytes, int] = {}
        self._held: dict[str, OrderedDict[bytes, None]] = {}
        self._slots: dict[str, int] = {}
        self._names: list[str] = []
        self._free: list[int] = []
        self._count = 0
        #: Whether it has changed since `check_invariants`.
        self._unchecked = False

    def __len__(self) -> int:
        """Hashes in the index, summed over the workers."""
        return self._count

    def held(self, identity: str) -> int:
        """Hashes that this worker holds."""
        return len(self._held.get(identity, ()))

    def has(self, identity: str, hashes: Iterable[bytes]) -> list[bool]:
        """For each of these hashes whether this worker holds it."""
        held = self._held.get(identity, OrderedDict())
        return [digest in held for digest in hashes]

    def add(self, identity: str, hashes: Sequence[bytes], limit: int) -> None:
        """The worker holds these hashes, in a prompt's order; its KV cache holds `limit` blocks.
        The tail of a prompt is forgotten before its head, as engines do. When the index is
        full, the worker's own oldest hash makes room."""
        held = self._held.get(identity)
        if held is None:
            held = self._enter(identity)
        self._unchecked = True
        bit = 1 << self._slots[identity]
        for digest in reversed(hashes):
            if digest in held:
                held.move_to_end(digest)
                continue
            if len(held) >= limit or self._count >= self._hashes_max:
                if not held:
                    return
                self._drop(held.popitem(last=False)[0], bit)
            held[digest] = None
            self._holders[digest] = self._holders.get(digest, 0) | bit
            self._count += 1

    def remove(self, identity: str, hashes: Iterable[bytes]) -> None:
        """The worker no longer holds these hashes."""
        held = self._held.get(identity)
        if held is None:
            return
        self._unchecked = True
        bit = 1 << self._slots[identity]
        for digest in hashes:
            if digest in held:
                del held[digest]
                self._drop(digest, bit)

    def clear(self, identity: str) -> None:
        """The worker lost its whole cache, or is gone. Idempotent."""
        held = self._held.pop(identity, None)
        if held is None:
            return
        self._unchecked = True
        slot = self._slots.pop(identity)
        for digest in held:
            self._drop(digest, 1 << slot)
        self._names[slot] = ""
        self._free.append(slot)

    def match(self, hashes: Sequence[bytes]) -> dict[str, int]:
        """The number of leading hashes that each worker holds; a worker with none is absent."""
        found: dict[str, int] = {}
        alive = -1
        for depth, digest in enumerate(hashes):
            left = alive & self._holders.get(digest, 0)
            if depth and left != alive:
                for identity in self._workers(alive & ~left):
                    found[identity] = depth
            if not left:
                return found
            alive = left
        if hashes:
            for identity in self._workers(alive):
                found[identity] = len(hashes)
        return found

    def _workers(self, mask: int) -> Iterator[str]:
        while mask:
            low = mask & -mask
            yield self._names[low.bit_length() - 1]
            mask ^= low

    def _enter(self, identity: str) -> OrderedDict[bytes, None]:
        if self._free:
            slot = self._free.pop()
            self._names[slot] = identity
        else:
            slot = len(self._names)
            self._names.append(identity)
        self._slots[identity] = slot
        held: OrderedDict[bytes, None] = OrderedDict()
        self._held[identity] = held
        return held

    def _drop(self, digest: bytes, bit: int) -> None:
        mask = self._holders[digest] & ~bit
        if mask:
            self._holders[digest] = mask
        else:
            del self._holders[digest]
        self._count -= 1

    def check_invariants(self) -> None:
        """Raises AssertionError. An index that is as it was found last time is not searched again:
        it may have a million hashes."""
        if not self._unchecked:
            return
        self._unchecked = False
        assert self._count == sum(map(len, self._held.values())) <= self._hashes_max
        assert self._held.keys() == self._slots.keys()
        assert len(set(self._slots.values())) == len(self._slots)
        assert len(self._names) == len(self._slots) + len(self._free)
        for identity, slot in self._slots.items():
            assert self._names[slot] == identity
            for digest in self._held[identity]:
                assert self._holders[digest] >> slot & 1
        assert sum(mask.bit_count() for mask in self._holders.values()) == self._count
