"""What a pool tells routers of the blocks that it has. Sans-IO.

A block comes with the engine's hash, by which workers ask for it, and with the name by which
routers know it. The tables of the two tiers tell by hash alone what a tier does not hold any more,
once. A block is held as long as one of them has it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

from common.kv.messages import PULL_HASH_BYTES
from common.kv.offers.pulls import GROUP
from common.kv.store.names import StoredNames
from common.kv.store.table import BlockName
from common.messages import PrefixDelta
from common.prefix import split


class Holdings:
    """At most `blocks_max` blocks."""

    def __init__(self, blocks_max: int) -> None:
        self._names = StoredNames(blocks_max)

    def add(self, hashes: bytes, names: bytes, holds: Callable[[BlockName], bool]) -> None:
        """The store has got these blocks. `hashes` and `names`: as in `KvCopied`. `holds`: whether
        it still has one; the table may have told before this that it is gone."""
        for block_hash, name in named(hashes, names):
            if holds(BlockName(GROUP, block_hash)):
                self._names.add(block_hash, name)

    def update(self, changed: Iterable[BlockName], holds: Callable[[BlockName], bool]) -> None:
        """`changed`: what a tier came to hold, or holds no more. `holds`: as in `add`."""
        for name in changed:
            if not holds(name):
                self._names.remove(name.block_hash)

    def check(self, holds: Callable[[BlockName], bool]) -> None:
        """A whole tier is lost. `holds`: as in `add`."""
        self.update([BlockName(GROUP, theirs) for theirs in self._names.theirs()], holds)

    def ends_of(self, names: bytes) -> bytes:
        """As in `KvOrder`, of the blocks with these names."""
        return self._names.ends_of(split(names))

    def __len__(self) -> int:
        return len(self._names)

    def deltas(self, *, whole: bool) -> Iterator[PrefixDelta]:
        """What changed since the last call, in bounded messages; with `whole` all that is there."""
        return self._names.deltas(whole=whole)


def named(hashes: bytes, names: bytes) -> Iterator[tuple[bytes, bytes]]:
    """Hash and name of each block. `hashes` and `names`: as in `KvCopied`."""
    for number, name in enumerate(split(names)):
        at = number * PULL_HASH_BYTES
        yield hashes[at : at + PULL_HASH_BYTES], name
