"""The canonical form of KV, in which it travels between engines that lay it out differently.

Theory of operation: a *canonical block* is `CANONICAL_TOKENS` tokens of one layer,
`[head][token][K|V][item]`, in one element type, which is the engine's or another one. An engine's
own block holds a whole number of them, so a canonical block has the number `own block * canonical
blocks in it + which`. `CanonicalMemory` presents an engine's memory as canonical blocks, so that
all above it (plan, handoff, digest) is the same for both forms. It converts while it copies, and
the sum is that of the canonical form: both ends sum up the same bytes, whatever their own layouts
are. Only the tokens of the blocks asked for are touched, so a block of the engine may be read while
it fills. The loops are compiled (`checksum/tilegen.py`); where they are not, or do not fit the
heads or the order of the page, numpy does the same.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from common.blocks import CANONICAL_TOKENS, ELEMENT_BYTES, Element
from common.kv.checksum.definition import RUN_FIELDS, Bytes, Offsets, PageSizes, Sum, TileLoop
from common.kv.checksum.kernel import run_tiles, sum_of, tile_loops
from common.kv.compression.elements import converted
from common.kv.layout import Geometry, HostMemory, KvMemory

_Items = NDArray[np.unsignedinteger]
_ITEMS: dict[int, type[np.unsignedinteger]] = {2: np.uint16, 4: np.uint32}
ROWS = 16
"""Of a tile of AMX, each of pairs of items of 2 bytes. A canonical block has as many tokens."""


@dataclass(frozen=True, slots=True)
class HeadMajorPage:
    """A page `[head][K | V]`: all K of a head before its V. vLLM's kernels for CPUs lay it out so,
    and K and V in one of two orders."""

    heads: int
    tokens: int
    items: int
    """Of the K of one head and token; V has as many."""
    item_bytes: int
    paired: bool = False
    """False: K is transposed, `[item][token]`, and V is `[token][item]`. True: they are in tiles
    for AMX, K `[16 tokens][pair of items][token][item of the pair]` and V
    `[16 items][pair of tokens][item][token of the pair]`."""

    @property
    def head_bytes(self) -> int:
        """K and V of one head."""
        return self.tokens * 2 * self.items * self.item_bytes

    @property
    def page_bytes(self) -> int:
        return self.heads * self.head_bytes

    @property
    def canonical_blocks(self) -> int:
        """Canonical blocks in one page; 0 if they do not fill it, or items are of another size than
        those that can be converted, or do not fill tiles."""
        whole = self.tokens % CANONICAL_TOKENS == 0 and self.item_bytes in _ITEMS
        if self.paired:
            whole = whole and self.item_bytes == 2 and self.items % ROWS == 0
        return self.tokens // CANONICAL_TOKENS if whole else 0


class CanonicalForm(KvMemory, Protocol):
    """An engine's memory as canonical blocks."""

    @property
    def heads(self) -> int: ...

    def part(self, number: int, parts: int) -> CanonicalForm:
        """The same memory with one of so many equal ranges of its heads only. It is not asked for
        parts that the heads do not fill."""
        ...


class CanonicalMemory:
    """Canonical blocks of an engine whose memory is the host's."""

    device = None

    def __init__(
        self,
        memory: HostMemory,
        page: HeadMajorPage,
        convert: tuple[Element, Element] | None = None,
    ) -> None:
        """`convert`: the element types of the pages and of the blocks, if they differ. Raises
        ValueError if the pages of this memory are not `page`, or have no canonical form."""
        own = memory.geometry
        self._in_one = page.canonical_blocks
        if page.page_bytes != own.page_bytes or not self._in_one:
            raise ValueError(f"pages of {own.page_bytes} bytes have no canonical form: {page}")
        if convert is not None and ELEMENT_BYTES[convert[0]] != page.item_bytes:
            raise ValueError(f"items of {page.item_bytes} bytes are not {convert[0]}")
        self._convert = convert
        item_bytes = ELEMENT_BYTES[convert[1]] if convert is not None else page.item_bytes
        size = own.page_bytes // self._in_one // page.item_bytes * item_bytes
        blocks = own.blocks * self._in_one
        self.geometry = Geometry(own.layers, blocks, size, size * blocks, size)
        self.heads = page.heads
        self._memory, self._page, self._pages = memory, page, memory.pages
        sizes = PageSizes(page.tokens, page.items, page.item_bytes)
        self._loops = None
        if not page.paired:
            self._loops = tile_loops(sizes, on_lines=memory.on_lines, convert=convert)
        self._layer_at = own.layer_stride * np.arange(own.layers)[:, None]
        self._block_stride = own.block_stride
        #: The latest block ids, and the table of runs for them in the first layer: the messages of
        #: a run of blocks are of one layer group after the other.
        self._first_layer: tuple[list[int], Offsets] = [], np.empty((0, RUN_FIELDS), np.int64)
        self._item = _ITEMS[item_bytes]
        self._keys, self._values = _keys_and_values(memory, page)

    def part(self, number: int, parts: int) -> CanonicalMemory:
        """The same memory with one of so many equal ranges of its heads only."""
        page = replace(self._page, heads=self.heads // parts)
        memory = self._memory.within_pages(number * page.page_bytes, page.page_bytes)
        return CanonicalMemory(memory, page, self._convert)

    def gather(self, block_ids: Sequence[int], out: Bytes, layers: range | None = None) -> Sum:
        """As in `KvMemory`, of canonical blocks."""
        these = self._checked(block_ids, out, layers)
        if self._loops is not None:
            return self._run_tiles(self._loops[0], out, block_ids, these)
        for on_wire, in_page in self._runs(block_ids, out, these):
            on_wire[...] = self._outwards(in_page)
        return sum_of(out)

    def scatter(self, block_ids: Sequence[int], data: Bytes, layers: range | None = None) -> Sum:
        """As in `KvMemory`, of canonical blocks."""
        if len(set(block_ids)) != len(block_ids):
            raise ValueError("a block may be written once only")
        these = self._checked(block_ids, data, layers)
        if self._loops is not None:
            return self._run_tiles(self._loops[1], data, block_ids, these)
        total = sum_of(data)
        for on_wire, in_page in self._runs(block_ids, data, these):
            in_page[...] = self._inwards(on_wire)
        return total

    def _outwards(self, items: _Items) -> _Items:
        return items if self._convert is None else converted(items, *self._convert)

    def _inwards(self, items: _Items) -> _Items:
        return items if self._convert is None else converted(items, *self._convert[::-1])

    def _checked(self, block_ids: Sequence[int], data: Bytes, layers: range | None) -> range:
        """The layers as a range. Nothing after this checks bounds."""
        self.geometry.wire_shape(len(block_ids), data, layers)
        if block_ids and not 0 <= min(block_ids) <= max(block_ids) < self.geometry.blocks:
            raise ValueError(f"a block is outside 0..{self.geometry.blocks}")
        return range(self.geometry.layers) if layers is None else layers

    def _run_tiles(
        self, loop: TileLoop, data: Bytes, block_ids: Sequence[int], layers: range
    ) -> Sum:
        table = self._table(block_ids, layers)
        return run_tiles(loop, data, self._pages, table, self._page.heads)

    def _table(self, block_ids: Sequence[int], layers: range) -> Offsets:
        """What `TileLoop` gets: where each run of blocks that follow each other in a page is on the
        wire, and where its K and its V begin from the first page on."""
        before, table = self._first_layer
        if before != block_ids:
            table = self._table_of_first_layer(block_ids)
            self._first_layer = list(block_ids), table
        offsets = np.zeros((len(layers), 1, RUN_FIELDS), np.int64)
        offsets[:, 0, 0] = self.geometry.page_bytes * len(block_ids) * np.arange(len(layers))
        offsets[:, 0, 1:3] = self._layer_at[layers.start : layers.stop]
        return (table + offsets).reshape(-1, RUN_FIELDS)

    def _table_of_first_layer(self, block_ids: Sequence[int]) -> Offsets:
        page, ids = self._page, np.array(block_ids, np.int64)
        if not len(ids):
            return np.empty((0, RUN_FIELDS), np.int64)
        blocks, parts = np.divmod(ids, self._in_one)
        goes_on = (np.diff(ids) == 1) & (parts[1:] != 0)
        begins = np.concatenate(([0], np.flatnonzero(~goes_on) + 1))
        first = page.item_bytes * CANONICAL_TOKENS * parts[begins]
        pages = blocks[begins] * self._block_stride
        table = np.empty((len(begins), RUN_FIELDS), np.int64)
        table[:, 0] = self.geometry.page_bytes * begins
        table[:, 1] = pages + first
        table[:, 2] = pages + page.head_bytes // 2 + first * page.items
        table[:, 3] = np.diff(begins, append=len(ids))
        return table

    def _runs(
        self, block_ids: Sequence[int], data: Bytes, layers: range
    ) -> Iterator[tuple[_Items, _Items]]:
        """For each run of canonical blocks that lie in one block of the engine, of their K and of
        their V: those in `data` and those in the page, of one shape."""
        page, these, count = self._page, slice(layers.start, layers.stop), len(block_ids)
        shape = len(layers), count, page.heads, CANONICAL_TOKENS, 2, page.items
        wire = data.view(self._item).reshape(shape)
        at = 0
        while at < count:
            block, first = divmod(block_ids[at], self._in_one)
            end = at + 1
            while end < count and block_ids[end] == block_ids[at] + end - at:
                if first + end - at == self._in_one:
                    break
                end += 1
            place = these, block, slice(first, first + end - at)
            for which, views in enumerate((self._keys, self._values)):
                in_page = views[place]
                yield wire[:, at:end, ..., which, :].reshape(in_page.shape, copy=False), in_page
            at = end


def _keys_and_values(memory: HostMemory, page: HeadMajorPage) -> tuple[_Items, _Items]:
    """Live views `[layer][block][canonical block in it][head][token][item]`; of paired ones with
    items as `[pair][item of it]` of K, and with tokens as `[pair][token of it]` and items as
    `[16 items][item of them]` of V."""
    halves = memory.pages.view(_ITEMS[page.item_bytes]).reshape(
        (*memory.pages.shape[:2], page.heads, 2, -1), copy=False
    )
    keys, values = halves[:, :, :, 0], halves[:, :, :, 1]
    shape, blocks = halves.shape[:3], page.canonical_blocks
    if page.paired:
        keys = keys.reshape((*shape, blocks, page.items // 2, ROWS, 2), copy=False)
        values = values.reshape(
            (*shape, page.items // ROWS, blocks, CANONICAL_TOKENS // 2, ROWS, 2), copy=False
        )
        return keys.transpose(0, 1, 3, 2, 5, 4, 6), values.transpose(0, 1, 4, 2, 5, 7, 3, 6)
    keys = keys.reshape((*shape, page.items, blocks, CANONICAL_TOKENS), copy=False)
    values = values.reshape((*shape, blocks, CANONICAL_TOKENS, page.items), copy=False)
    return keys.transpose(0, 1, 4, 2, 5, 3), values.transpose(0, 1, 3, 2, 4, 5)
