"""The canonical form of KV, in which it travels between engines that lay it out differently.

Theory of operation: a *canonical block* is `CANONICAL_TOKENS` tokens of one layer,
`[head][token][K|V][item]`, in the element type of the engine. An engine's own block holds a whole
number of them, so a canonical block has the number `own block * canonical blocks in it + which`.
`CanonicalMemory` presents an engine's memory as canonical blocks, so that all above it (plan,
handoff, digest) is the same for both forms. It converts while it copies, and the sum is that of the
canonical form: both ends sum up the same bytes, whatever their own layouts are. Only the tokens of
the blocks asked for are touched, so a block of the engine may be read while it fills.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from common.blocks import CANONICAL_TOKENS
from common.kv.checksum.definition import Bytes, Sum
from common.kv.checksum.kernel import sum_of
from common.kv.layout import Geometry, HostMemory

_ITEMS: dict[int, type[np.unsignedinteger]] = {2: np.uint16, 4: np.uint32}


@dataclass(frozen=True, slots=True)
class HeadMajorPage:
    """A page `[head][K: item, token | V: token, item]`: all K of a head, transposed, before its
    V. vLLM's kernels for CPUs lay it out so."""

    heads: int
    tokens: int
    items: int
    """Of the K of one head and token; V has as many."""
    item_bytes: int

    @property
    def page_bytes(self) -> int:
        return self.heads * self.tokens * 2 * self.items * self.item_bytes

    @property
    def canonical_blocks(self) -> int:
        """Canonical blocks in one page; 0 if they do not fill it, or items are of another size than
        those that can be converted."""
        whole = self.tokens % CANONICAL_TOKENS == 0 and self.item_bytes in _ITEMS
        return self.tokens // CANONICAL_TOKENS if whole else 0


class CanonicalMemory:
    """An engine's memory as canonical blocks."""

    def __init__(self, memory: HostMemory, page: HeadMajorPage) -> None:
        """Raises ValueError if the pages of this memory are not `page`, or have no canonical
        form."""
        own = memory.geometry
        self._in_one = page.canonical_blocks
        if page.page_bytes != own.page_bytes or not self._in_one:
            raise ValueError(f"pages of {own.page_bytes} bytes have no canonical form: {page}")
        size, blocks = own.page_bytes // self._in_one, own.blocks * self._in_one
        self.geometry = Geometry(own.layers, blocks, size, size * blocks, size)
        self._page = page
        self._item = _ITEMS[page.item_bytes]
        halves = memory.pages.view(self._item).reshape(
            (own.layers, own.blocks, page.heads, 2, -1), copy=False
        )
        shape = own.layers, own.blocks, page.heads
        tokens = self._in_one, CANONICAL_TOKENS
        keys = halves[:, :, :, 0].reshape((*shape, page.items, *tokens), copy=False)
        values = halves[:, :, :, 1].reshape((*shape, *tokens, page.items), copy=False)
        #: Both as `[layer][block][canonical block in it][head][token][item]`.
        self._keys = keys.transpose(0, 1, 4, 2, 5, 3)
        self._values = values.transpose(0, 1, 3, 2, 4, 5)

    def gather(self, block_ids: Sequence[int], out: Bytes, layers: range | None = None) -> Sum:
        """As in `KvMemory`, of canonical blocks."""
        for run, keys, values in self._runs(block_ids, out, layers):
            run[..., 0, :] = keys
            run[..., 1, :] = values
        return sum_of(out)

    def scatter(self, block_ids: Sequence[int], data: Bytes, layers: range | None = None) -> Sum:
        """As in `KvMemory`, of canonical blocks."""
        if len(set(block_ids)) != len(block_ids):
            raise ValueError("a block may be written once only")
        total = sum_of(data)
        for run, keys, values in self._runs(block_ids, data, layers):
            keys[...] = run[..., 0, :]
            values[...] = run[..., 1, :]
        return total

    def _runs(
        self, block_ids: Sequence[int], data: Bytes, layers: range | None
    ) -> Iterator[tuple[NDArray[np.unsignedinteger], ...]]:
        """For each run of canonical blocks that lie in one block of the engine: their part of
        `data`, their K and their V."""
        layers = range(self.geometry.layers) if layers is None else layers
        count = len(block_ids)
        self.geometry.wire_shape(count, data, layers)
        if count and not 0 <= min(block_ids) <= max(block_ids) < self.geometry.blocks:
            raise ValueError(f"a block is outside 0..{self.geometry.blocks}")
        page, these = self._page, slice(layers.start, layers.stop)
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
            parts = slice(first, first + end - at)
            yield (
                wire[:, at:end],
                self._keys[these, block, parts],
                self._values[these, block, parts],
            )
            at = end
