"""What a pool tells routers of the blocks that it has. Sans-IO.

A block comes with the engine's hash, by which workers ask for it, and with the name by which
routers know it. The store's table tells by hash alone what is not held any more, once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

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
        for number, name in enumerate(split(names)):
            at = number * PULL_HASH_BYTES
            block_hash = hashes[at : at + PULL_HASH_BYTES]
            if holds(BlockName(GROUP, block_hash)):
                self._names.add(block_hash, name)

    def update(self, changes: Mapping[BlockName, bool]) -> None:
        """`changes`: as `StoreTable.changes` returns them."""
        for name, held in changes.items():
            if not held:
                self._names.remove(name.block_hash)

    def deltas(self, *, whole: bool) -> Iterator[PrefixDelta]:
        """What changed since the last call, in bounded messages; with `whole` all that is there."""
        return self._names.deltas(whole=whole)
