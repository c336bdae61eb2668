"""Which worker holds the KV of which prompt prefix, as far as the router knows.

Theory of operation: each known hash (`common.prefix`) has a bit mask of the workers that hold it,
one bit a worker. How much of a prompt each worker has is then one walk along the prompt's hashes,
ANDing masks, whatever the number of workers: a worker falls out at the first block that it lacks,
which is exact, since an engine can use nothing behind a gap. What is known is bounded for each
worker by its KV blocks and for all by `HASHES_MAX`; the oldest is forgotten first. It is knowledge
for choosing, never a promise: a worker may have evicted what it is thought to hold.

Two sources feed it. A placement is taken to leave its prompt on both its workers, at once, so that
a burst of one prefix stays together. A worker that reports its engine's KV events (`PrefixDelta`)
corrects that by what is really stored and removed.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Iterator, Sequence

HASHES_MAX = 1 << 20


class Prefixes:
    def __init__(self, hashes_max: int = HASHES_MAX) -> None:
        self._hashes_max = hashes_max
        self._holders: dict[bytes, int] = {}
        self._held: dict[str, OrderedDict[bytes, None]] = {}
        self._slots: dict[str, int] = {}
        self._names: list[str] = []
        self._free: list[int] = []
        self._count = 0

    def __len__(self) -> int:
        """Hashes known, over all workers."""
        return self._count

    def held(self, identity: str) -> int:
        return len(self._held.get(identity, ()))

    def add(self, identity: str, hashes: Sequence[bytes], limit: int) -> None:
        """The worker holds these, in a prompt's order; `limit`: what its KV cache can hold. Of one
        prompt the tail is forgotten first, as engines do; over the limit of all workers, a worker's
        own oldest."""
        held = self._held.get(identity)
        if held is None:
            held = self._enter(identity)
        bit = 1 << self._slots[identity]
        for each in reversed(hashes):
            if each in held:
                held.move_to_end(each)
                continue
            if len(held) >= limit or self._count >= self._hashes_max:
                if not held:
                    return
                self._drop(held.popitem(last=False)[0], bit)
            held[each] = None
            self._holders[each] = self._holders.get(each, 0) | bit
            self._count += 1

    def remove(self, identity: str, hashes: Iterable[bytes]) -> None:
        """The worker no longer holds these."""
        held = self._held.get(identity)
        if held is None:
            return
        bit = 1 << self._slots[identity]
        for each in hashes:
            if each in held:
                del held[each]
                self._drop(each, bit)

    def clear(self, identity: str) -> None:
        """The worker holds nothing any more, or is gone. Idempotent."""
        held = self._held.pop(identity, None)
        if held is None:
            return
        slot = self._slots.pop(identity)
        for each in held:
            self._drop(each, 1 << slot)
        self._names[slot] = ""
        self._free.append(slot)

    def match(self, hashes: Sequence[bytes]) -> dict[str, int]:
        """Leading hashes that each worker holds; workers with none are not in it."""
        found: dict[str, int] = {}
        alive = -1
        for depth, each in enumerate(hashes):
            left = alive & self._holders.get(each, 0)
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

    def _drop(self, each: bytes, bit: int) -> None:
        mask = self._holders[each] & ~bit
        if mask:
            self._holders[each] = mask
        else:
            del self._holders[each]
        self._count -= 1

    def check_invariants(self) -> None:
        """Raises AssertionError."""
        assert self._count == sum(len(held) for held in self._held.values()) <= self._hashes_max
        assert self._held.keys() == self._slots.keys()
        assert len(set(self._slots.values())) == len(self._slots)
        assert len(self._names) == len(self._slots) + len(self._free)
        for identity, slot in self._slots.items():
            assert self._names[slot] == identity
            for each in self._held[identity]:
                assert self._holders[each] >> slot & 1
        assert sum(mask.bit_count() for mask in self._holders.values()) == self._count
