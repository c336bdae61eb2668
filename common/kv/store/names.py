"""The names by which routers know the blocks of a store (`common.prefix`), beside the hashes by
which engines know them. Sans-IO.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator, Sequence
from itertools import islice

from common.kv.store.slots import HASH_END_BYTES
from common.messages import PREFIX_DELTA_HASHES_MAX, PrefixDelta

Hash = bytes | int
STORE, DISK = "store", "disk"
"""As in `PrefixDelta.medium`."""


class Changes:
    """What a group, or the store, gained and lost since it was told, by our hashes."""

    def __init__(self) -> None:
        self.stored: dict[bytes, None] = {}
        self.removed: dict[bytes, None] = {}

    def gain(self, ours: bytes) -> None:
        self.removed.pop(ours, None)
        self.stored[ours] = None

    def lose(self, ours: bytes) -> None:
        self.stored.pop(ours, None)
        self.removed[ours] = None

    def clear(self) -> None:
        self.stored.clear()
        self.removed.clear()


class StoredNames:
    """What one tier of a store holds, at most `blocks_max` blocks, by the engine's hashes."""

    def __init__(self, blocks_max: int, let_go_max: int = 0, *, medium: str = STORE) -> None:
        """`let_go_max`: how many of the blocks that the engine let go last are remembered."""
        self._medium = medium
        self.blocks_max = blocks_max
        self._let_go_max = let_go_max
        self._ours: OrderedDict[Hash, bytes] = OrderedDict()
        #: What the engine let go last, because the store may tell later that it has it.
        self._let_go: OrderedDict[Hash, bytes] = OrderedDict()
        self._changes = Changes()
        self._cleared = False

    def __len__(self) -> int:
        return len(self._ours)

    def theirs(self) -> list[bytes]:
        """The hashes of all that is held, where the engine's are no numbers."""
        return [theirs for theirs in self._ours if isinstance(theirs, bytes)]

    def name_of(self, theirs: Hash) -> bytes | None:
        """The name of a block that is held; None if it is not."""
        return self._ours.get(theirs)

    def ends_of(self, names: Sequence[bytes]) -> bytes:
        """The last bytes of the engine's hashes of those blocks with these names that are held, in
        this order; as in `KvOrder.ends`."""
        theirs = {ours: theirs for theirs, ours in self._ours.items()}
        return b"".join(_end_of(theirs[name]) for name in names if name in theirs)

    def let_go(self, theirs: Hash, ours: bytes) -> None:
        """The engine does not hold this block any more."""
        if self.blocks_max:
            self._let_go[theirs] = ours
            if len(self._let_go) > self._let_go_max:
                self._let_go.popitem(last=False)

    def add(self, theirs: Hash, ours: bytes | None) -> bool:
        """`ours`: the name that the engine told, if it holds the block. Returns whether the block
        has a name."""
        name = ours or self._let_go.get(theirs) or self._ours.get(theirs)
        if name is None:
            return False
        self._ours[theirs] = name
        self._ours.move_to_end(theirs)
        self._changes.gain(name)
        if len(self._ours) > self.blocks_max:
            self.remove(next(iter(self._ours)))
        return True

    def remove(self, theirs: Hash) -> None:
        ours = self._ours.pop(theirs, None)
        if ours is not None:
            self._changes.lose(ours)

    def clear(self) -> None:
        self._ours.clear()
        self._changes.clear()
        self._cleared = True

    def deltas(self, *, whole: bool) -> Iterator[PrefixDelta]:
        """As `PrefixWatch.deltas`."""
        if not self.blocks_max:
            return
        if whole:
            self._changes.clear()
            self._changes.stored.update(dict.fromkeys(self._ours.values()))
        if whole or self._cleared:
            yield PrefixDelta(cleared=True, medium=self._medium)
        for some in pieces(self._changes.removed):
            yield PrefixDelta(removed=some, medium=self._medium)
        for some in pieces(self._changes.stored):
            yield PrefixDelta(stored=some, medium=self._medium)
        self._changes.clear()
        self._cleared = False


def ends_of_both(memory: StoredNames, disk: StoredNames, names: Sequence[bytes]) -> bytes:
    """As `StoredNames.ends_of`, of what either tier holds, each block once."""
    parts = (tier.ends_of(names) for tier in (memory, disk))
    ends = (part[at : at + HASH_END_BYTES] for part in parts for at in _starts(part))
    return b"".join(dict.fromkeys(ends))


def _starts(ends: bytes) -> range:
    return range(0, len(ends), HASH_END_BYTES)


def _end_of(theirs: Hash) -> bytes:
    if isinstance(theirs, int):
        return theirs.to_bytes(HASH_END_BYTES, "big")
    return theirs[-HASH_END_BYTES:]


def pieces(hashes: dict[bytes, None]) -> Iterator[bytes]:
    """These hashes in as many parts as one `PrefixDelta` each can have."""
    rest = iter(hashes)
    while some := b"".join(islice(rest, PREFIX_DELTA_HASHES_MAX)):
        yield some
