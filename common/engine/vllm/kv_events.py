"""Translates vLLM's KV events into the prefix hashes that the router knows (`common.prefix`).

Theory of operation: EngineCore publishes which full blocks entered and left its prefix cache, under
vLLM's own hashes, one message for each step; the daemon subscribes. A stored block comes with its
tokens and its parent's hash, so our hash is chained to that of the parent. A block whose chain is
broken (an unknown parent, keys that Baton does not use, another block size) has no prefix hash and
is left out. Of several KV cache groups one is followed, which keeps all tokens if any does: it
names the blocks. The others store and drop blocks of their own under the same hashes of vLLM, and
of each is told which of the named blocks it has; a window has the last ones of a prompt at best. If
messages were lost, which their numbers show, everything is forgotten and the router is told to
forget it too, so that it never believes what is wrong. What the worker's store holds comes in
events of its own medium, as the engine's hashes alone; what other workers offered comes from the KV
thread, with its names. So does what its disk holds, which has a medium of its own: after a restart
no engine tells names, and the events of its first steps would be lost. Blocks that were stored and
removed between two deltas are not reported at all.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import msgspec

from common.blocks import KvGroup, group_of_prefixes, other_groups
from common.kv.messages import NAME_BYTES, PULL_HASH_BYTES, KvCopied
from common.kv.store.names import DISK, Changes, Hash, StoredNames, ends_of_both, pieces
from common.messages import Capacity, PrefixDelta
from common.net.wire import pack_ids
from common.prefix import chain, image_key, root

PUBLISHED_BYTES = 8
"""The last ones of a hash, which vLLM's events have as a number."""


class BlockStored(msgspec.Struct, tag=True):
    """vLLM 0.32's event for blocks that entered the prefix cache, as far as it is used here."""

    block_hashes: list[Hash]
    #: Hash of the block before the first one; None at the beginning of a prompt.
    parent_block_hash: Hash | None
    #: Tokens of all these blocks.
    token_ids: list[int]
    #: Tokens of one block.
    block_size: int
    medium: str | None = None
    #: For each block what entered its hash besides tokens: an adapter, for the first one the salt.
    extra_keys: list[tuple[Any, ...] | None] | None = None
    #: The KV cache group, of which each has its own blocks for the same tokens.
    group_idx: int | None = None


class BlockRemoved(msgspec.Struct, tag=True):
    """vLLM's event for blocks that left the prefix cache."""

    block_hashes: list[Hash]
    medium: str | None = None
    group_idx: int | None = None


class AllBlocksCleared(msgspec.Struct, tag=True):
    """vLLM's event for a prefix cache that was emptied."""


class EventBatch(msgspec.Struct, array_like=True):
    """The events of one step."""

    ts: float
    events: list[BlockStored | BlockRemoved | AllBlocksCleared]


_decoder = msgspec.msgpack.Decoder(EventBatch)


class BlockKeys(NamedTuple):
    """What Baton knows of a block's extra keys."""

    salts: tuple[str, ...] = ()
    #: Id of the LoRA adapter; empty: none.
    adapter: str = ""
    #: As `common.prefix` has it.
    images: bytes = b""


class PrefixWatch:
    """What the prefix cache holds, at most `blocks_max` blocks of a group, and the store. Sans-IO:
    `on_frames` takes the frames of one message, and `deltas` gives the messages to the router."""

    def __init__(
        self,
        block_tokens: int,
        blocks_max: int,
        groups: Sequence[KvGroup] = (),
        *,
        stored_max: int = 0,
        on_disk_max: int = 0,
    ) -> None:
        """`groups`: the engine's KV cache groups; none for one that keeps all tokens. `stored_max`
        and `on_disk_max`: blocks of the store in memory and on disk."""
        self._block_tokens = block_tokens
        self._blocks_max = blocks_max
        self._group = group_of_prefixes(groups)
        self._ours: OrderedDict[Hash, bytes] = OrderedDict()
        #: For each other group the blocks that it has, named or not.
        self._others = {at: OrderedDict[Hash, None]() for at, _ in other_groups(groups)}
        self._changes = {at: Changes() for at in (self._group, *self._others)}
        self._in_store = StoredNames(stored_max, blocks_max)
        self._on_disk = StoredNames(on_disk_max, medium=DISK)
        self._cleared = False
        self._next: int | None = None
        #: Blocks that have no prefix hash.
        self.dropped = 0

    def on_frames(self, frames: list[bytes]) -> None:
        """Takes `[topic, number, events]`. Anything else is treated as a lost message."""
        number = int.from_bytes(frames[1], "big") if len(frames) == 3 else -1
        try:
            batch = _decoder.decode(frames[2]) if number >= 0 else None
        except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError):
            batch = None
        if batch is None or self._next not in (None, number):
            self._clear()
            self._in_store.clear()
        self._next = number + 1 if number >= 0 else None
        for event in batch.events if batch is not None else ():
            self._on_event(event)

    def on_copied(self, copied: KvCopied) -> None:
        """The store has these blocks, which another worker offered, or which are on its disk; and
        lacks others."""
        tier = self._on_disk if copied.disk else self._in_store
        for theirs in _split(copied.gone, PULL_HASH_BYTES):
            tier.remove(published(theirs))
        for theirs, ours in zip(
            _split(copied.hashes, PULL_HASH_BYTES), _split(copied.names, NAME_BYTES), strict=False
        ):
            tier.add(published(theirs), ours)

    def ends_of(self, names: bytes) -> bytes:
        """As in `KvOrder`, of the blocks with these names that the store has."""
        return ends_of_both(self._in_store, self._on_disk, _split(names, NAME_BYTES))

    def cached(self, hashes: Sequence[bytes]) -> int:
        """How many of these blocks, in a prompt's order, the engine's cache has without a gap."""
        for number, block_hash in enumerate(hashes):
            if published(block_hash) not in self._ours:
                return number
        return len(hashes)

    def deltas(self, *, whole: bool = False) -> Iterator[PrefixDelta]:
        """What changed since the last call, in bounded messages; with `whole` all that is there,
        for a router that knows nothing."""
        if whole:
            self._tell_all()
        if self._cleared:
            yield PrefixDelta(cleared=True)
        for group, changes in self._changes.items():
            for some in pieces(changes.removed):
                yield PrefixDelta(removed=some, group=group)
            for some in pieces(changes.stored):
                yield PrefixDelta(stored=some, group=group)
            changes.clear()
        self._cleared = False
        yield from self._in_store.deltas(whole=whole)
        yield from self._on_disk.deltas(whole=whole)

    def _on_event(self, event: BlockStored | BlockRemoved | AllBlocksCleared) -> None:
        match event:
            case AllBlocksCleared():
                self._clear()
            case BlockStored(medium="STORE") | BlockRemoved(medium="STORE"):
                self._on_in_store(event)
            case _ if event.group_idx in self._others:
                self._change_other(event.group_idx, event)
            case _ if event.group_idx not in (None, self._group):
                pass
            case BlockStored():
                self._store(event)
            case BlockRemoved():
                for theirs in event.block_hashes:
                    self._forget(theirs)

    def _on_in_store(self, event: BlockStored | BlockRemoved) -> None:
        """The store tells hashes only; their names are those that the engine, or the disk, told
        before."""
        for theirs in event.block_hashes:
            if isinstance(event, BlockRemoved):
                self._in_store.remove(theirs)
            else:
                ours = self._ours.get(theirs) or self._on_disk.name_of(theirs)
                self.dropped += not self._in_store.add(theirs, ours)

    def _tell_all(self) -> None:
        self._cleared = True
        for group, changes in self._changes.items():
            changes.clear()
            held = self._others.get(group, self._ours)
            for theirs, ours in self._ours.items():
                if theirs in held:
                    changes.gain(ours)

    def _store(self, event: BlockStored) -> None:
        keys = [_keys_of(extra) for extra in event.extra_keys or []]
        before = self._before(event, keys)
        if before is None or event.block_size != self._block_tokens:
            self.dropped += len(event.block_hashes)
            return
        images = [key.images for key in keys if key is not None]
        names = chain(pack_ids(event.token_ids), self._block_tokens, before, images)
        for theirs, ours in zip(event.block_hashes, names, strict=False):
            self._ours[theirs] = ours
            self._ours.move_to_end(theirs)
            for changes in self._of_groups(theirs):
                changes.gain(ours)
            if len(self._ours) > self._blocks_max:
                self._forget(next(iter(self._ours)))

    def _before(self, event: BlockStored, keys: list[BlockKeys | None]) -> bytes | None:
        """The hash to which the first block is chained; None if the block has no prefix hash."""
        first, *others = keys or [BlockKeys()]
        if first is None or any(key is None or key.salts for key in others):
            return None
        if any(key is not None and key.adapter != first.adapter for key in others):
            return None
        if event.parent_block_hash is not None:
            return None if first.salts else self._ours.get(event.parent_block_hash)
        if len(first.salts) > 1:
            return None
        return root(first.salts[0] if first.salts else None, first.adapter)

    def _forget(self, theirs: Hash) -> None:
        ours = self._ours.pop(theirs, None)
        if ours is None:
            return
        self._in_store.let_go(theirs, ours)
        for changes in self._of_groups(theirs):
            changes.lose(ours)

    def _of_groups(self, theirs: Hash) -> Iterator[Changes]:
        """Of the group that names this block, and of each other that has it."""
        yield self._changes[self._group]
        for group, held in self._others.items():
            if theirs in held:
                yield self._changes[group]

    def _change_other(self, group: int, event: BlockStored | BlockRemoved) -> None:
        held, changes = self._others[group], self._changes[group]
        for theirs in event.block_hashes:
            if isinstance(event, BlockStored):
                held[theirs] = None
                held.move_to_end(theirs)
                if theirs in self._ours:
                    changes.gain(self._ours[theirs])
                if len(held) > self._blocks_max:
                    self._drop_other(group, next(iter(held)))
            elif theirs in held:
                self._drop_other(group, theirs)

    def _drop_other(self, group: int, theirs: Hash) -> None:
        del self._others[group][theirs]
        if theirs in self._ours:
            self._changes[group].lose(self._ours[theirs])

    def _clear(self) -> None:
        self._ours.clear()
        for held in self._others.values():
            held.clear()
        for changes in self._changes.values():
            changes.clear()
        self._cleared = True


def watch_of(capacity: Capacity) -> PrefixWatch:
    """For an engine with this capacity."""
    return PrefixWatch(
        capacity.block_tokens,
        capacity.kv_blocks,
        capacity.kv_groups,
        stored_max=capacity.pull_blocks,
        on_disk_max=capacity.disk_blocks,
    )


def published(block_hash: bytes) -> int:
    """The engine's hash in the form in which its KV events have it."""
    return int.from_bytes(block_hash[-PUBLISHED_BYTES:], "big")


def _split(joined: bytes, size: int) -> list[bytes]:
    return [joined[at : at + size] for at in range(0, len(joined), size)]


def _keys_of(keys: tuple[Any, ...] | None) -> BlockKeys | None:
    """A name is a salt, a pair an image's digest and offset, and three names vLLM's word for an
    adapter, its id and its path. None: there are other keys."""
    salts, images, adapter = [], b"", ""
    for key in keys or ():
        match key:
            case str():
                salts.append(key)
            case [str() as digest, int() as offset]:
                images += image_key(digest, offset)
            case ["lora", str() as adapter, str()]:
                pass
            case _:
                return None
    return BlockKeys(tuple(salts), adapter, images)
