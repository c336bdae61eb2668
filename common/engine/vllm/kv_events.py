"""Translates vLLM's KV events into the prefix hashes that the router knows (`common.prefix`).

Theory of operation: EngineCore publishes which full blocks entered and left its prefix cache, under
vLLM's own hashes, one message for each step; the daemon subscribes. A stored block comes with its
tokens and its parent's hash, so our hash is chained to that of the parent. A block whose chain is
broken (an unknown parent, keys that Baton does not use, another block size) has no prefix hash and
is left out. Of several KV cache groups one is followed, which keeps all tokens if any does: what
the others still keep of a prefix is not known here. If messages were lost, which their numbers
show, everything is forgotten and the router is told to forget it too, so that it never believes
what is wrong. What the worker's store holds comes in events of its own medium, as the engine's
hashes alone. Blocks that were stored and removed between two deltas are not reported at all.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator
from itertools import islice
from typing import Any, NamedTuple

import msgspec

from common.messages import PREFIX_DELTA_HASHES_MAX, PrefixDelta
from common.net.wire import pack_ids
from common.prefix import chain, image_key, root

Hash = bytes | int


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
    #: For each block what entered its hash besides tokens; for the first one the cache salt.
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
    #: As `common.prefix` has it.
    images: bytes = b""


class _Medium:
    """The blocks in one place, at most `blocks_max`, by vLLM's hashes."""

    def __init__(self, name: str, blocks_max: int) -> None:
        self.name = name
        self.blocks_max = blocks_max
        self.ours: OrderedDict[Hash, bytes] = OrderedDict()
        self._stored: dict[bytes, None] = {}
        self._removed: dict[bytes, None] = {}
        self._cleared = False

    def add(self, theirs: Hash, ours: bytes) -> None:
        self.ours[theirs] = ours
        self.ours.move_to_end(theirs)
        self._removed.pop(ours, None)
        self._stored[ours] = None
        if len(self.ours) > self.blocks_max:
            self.remove(next(iter(self.ours)))

    def remove(self, theirs: Hash) -> bytes | None:
        """Our hash of it, if it was there."""
        ours = self.ours.pop(theirs, None)
        if ours is not None:
            self._stored.pop(ours, None)
            self._removed[ours] = None
        return ours

    def clear(self) -> None:
        self.ours.clear()
        self._stored.clear()
        self._removed.clear()
        self._cleared = True

    def deltas(self, *, whole: bool) -> Iterator[PrefixDelta]:
        """As `PrefixWatch.deltas`."""
        if whole:
            self._cleared = True
            self._removed.clear()
            self._stored = dict.fromkeys(self.ours.values())
        if self._cleared:
            yield PrefixDelta(cleared=True, medium=self.name)
        for some in _pieces(self._removed):
            yield PrefixDelta(removed=some, medium=self.name)
        for some in _pieces(self._stored):
            yield PrefixDelta(stored=some, medium=self.name)
        self._cleared = False
        self._removed.clear()
        self._stored.clear()


class PrefixWatch:
    """What the prefix cache holds, at most `blocks_max` blocks, and the store. Sans-IO: `on_frames`
    takes the frames of one message, and `deltas` gives the messages to the router."""

    def __init__(
        self, block_tokens: int, blocks_max: int, group: int = 0, *, stored_max: int = 0
    ) -> None:
        """`group`: the KV cache group whose blocks are followed. `stored_max`: blocks of the
        store."""
        self._block_tokens = block_tokens
        self._group = group
        self._engine = _Medium("engine", blocks_max)
        self._in_store = _Medium("store", stored_max)
        #: What the engine let go last, because the store may tell later that it has it.
        self._let_go: OrderedDict[Hash, bytes] = OrderedDict()
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
            self._engine.clear()
            self._in_store.clear()
        self._next = number + 1 if number >= 0 else None
        for event in batch.events if batch is not None else ():
            self._on_event(event)

    def deltas(self, *, whole: bool = False) -> Iterator[PrefixDelta]:
        """What changed since the last call, in bounded messages; with `whole` all that is there,
        for a router that knows nothing."""
        yield from self._engine.deltas(whole=whole)
        if self._in_store.blocks_max:
            yield from self._in_store.deltas(whole=whole)

    def _on_event(self, event: BlockStored | BlockRemoved | AllBlocksCleared) -> None:
        match event:
            case AllBlocksCleared():
                self._engine.clear()
            case BlockStored(medium="STORE"):
                self._on_in_store(event)
            case BlockRemoved(medium="STORE"):
                for theirs in event.block_hashes:
                    self._in_store.remove(theirs)
            case _ if event.group_idx not in (None, self._group):
                pass
            case BlockStored():
                self._store(event)
            case BlockRemoved():
                self._remove(event)

    def _on_in_store(self, event: BlockStored) -> None:
        """The store tells hashes only; their names are those that the engine told before."""
        for theirs in event.block_hashes:
            ours = self._engine.ours.get(theirs) or self._let_go.get(theirs)
            if ours is not None:
                self._in_store.add(theirs, ours)
            else:
                self.dropped += 1

    def _store(self, event: BlockStored) -> None:
        keys = [_keys_of(extra) for extra in event.extra_keys or []]
        before = self._before(event, keys)
        if before is None or event.block_size != self._block_tokens:
            self.dropped += len(event.block_hashes)
            return
        images = [key.images for key in keys if key is not None]
        names = chain(pack_ids(event.token_ids), self._block_tokens, before, images)
        for theirs, ours in zip(event.block_hashes, names, strict=False):
            self._engine.add(theirs, ours)

    def _before(self, event: BlockStored, keys: list[BlockKeys | None]) -> bytes | None:
        """The hash to which the first block is chained; None if the block has no prefix hash."""
        first, *others = keys or [BlockKeys()]
        if first is None or any(key is None or key.salts for key in others):
            return None
        if event.parent_block_hash is not None:
            return None if first.salts else self._engine.ours.get(event.parent_block_hash)
        if len(first.salts) > 1:
            return None
        return root(first.salts[0] if first.salts else None)

    def _remove(self, event: BlockRemoved) -> None:
        for theirs in event.block_hashes:
            ours = self._engine.remove(theirs)
            if ours is not None and self._in_store.blocks_max:
                self._let_go[theirs] = ours
                if len(self._let_go) > self._engine.blocks_max:
                    self._let_go.popitem(last=False)


def _keys_of(keys: tuple[Any, ...] | None) -> BlockKeys | None:
    """A name is a salt, and a pair an image's digest and offset. None: there are other keys."""
    salts, images = [], b""
    for key in keys or ():
        match key:
            case str():
                salts.append(key)
            case [str() as digest, int() as offset]:
                images += image_key(digest, offset)
            case _:
                return None
    return BlockKeys(tuple(salts), images)


def _pieces(hashes: dict[bytes, None]) -> Iterator[bytes]:
    rest = iter(hashes)
    while some := b"".join(islice(rest, PREFIX_DELTA_HASHES_MAX)):
        yield some
