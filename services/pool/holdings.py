"""What a pool tells routers of the blocks that it has. Sans-IO.

A block comes with the engine's hash, by which workers ask for it, and with the name by which
routers know it. The table of the memory tells by hash alone what it holds and holds no more, once;
what the disk has comes with names. Routers are told of each tier apart, because a disk is slower.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping

from common.kv.messages import PULL_HASH_BYTES
from common.kv.offers.pulls import GROUP
from common.kv.store.names import DISK, StoredNames, ends_of_both
from common.kv.store.table import BlockName
from common.messages import PrefixDelta
from common.prefix import split


class Holdings:
    """At most `blocks_max` blocks in memory, and `on_disk_max` on disk."""

    def __init__(self, blocks_max: int, on_disk_max: int = 0) -> None:
        self._names = StoredNames(blocks_max)
        self._on_disk = StoredNames(on_disk_max, medium=DISK)

    def add(self, hashes: bytes, names: bytes, holds: Callable[[BlockName], bool]) -> None:
        """The memory has got these blocks. `hashes` and `names`: as in `KvCopied`. `holds`: whether
        it still has one; the table may have told before this that it is gone."""
        for block_hash, name in named(hashes, names):
            if holds(BlockName(GROUP, block_hash)):
                self._names.add(block_hash, name)

    def update(self, changed: Iterable[BlockName], holds: Callable[[BlockName], bool]) -> None:
        """`changed`: what memory came to hold, or holds no more. `holds`: as in `add`. What came
        back from the disk has the name that it had there."""
        for name in changed:
            if not holds(name):
                self._names.remove(name.block_hash)
            elif (ours := self._on_disk.name_of(name.block_hash)) is not None:
                self._names.add(name.block_hash, ours)

    def update_disk(self, changed: Mapping[BlockName, bytes | None]) -> None:
        """`changed`: as of `DiskStore.changes`. A block without any name is left out."""
        for name, ours in changed.items():
            if ours is None:
                self._on_disk.remove(name.block_hash)
            else:
                self._on_disk.add(name.block_hash, ours or self._names.name_of(name.block_hash))

    def ends_of(self, names: bytes) -> bytes:
        """As in `KvOrder`, of the blocks with these names."""
        return ends_of_both(self._names, self._on_disk, split(names))

    def __len__(self) -> int:
        """Blocks of either tier."""
        return len({*self._names.theirs(), *self._on_disk.theirs()})

    def deltas(self, *, whole: bool) -> Iterator[PrefixDelta]:
        """What changed since the last call, in bounded messages; with `whole` all that is there."""
        yield from self._names.deltas(whole=whole)
        yield from self._on_disk.deltas(whole=whole)


def named(hashes: bytes, names: bytes) -> Iterator[tuple[bytes, bytes]]:
    """Hash and name of each block. `hashes` and `names`: as in `KvCopied`."""
    for number, name in enumerate(split(names)):
        at = number * PULL_HASH_BYTES
        yield hashes[at : at + PULL_HASH_BYTES], name
