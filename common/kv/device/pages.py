"""Where blocks are in memory on a card, and in which order their bytes travel.

A block travels as it lies, or in the canonical form (`common/kv/canonical.py`). vLLM's kernels for
GPUs keep K before V in each token of each head, with heads and tokens in either order, so a
canonical block of 16 tokens consists of *runs* that lie in a page as they travel: K and V of one
token, or of all 16. Nothing inside a run moves, so the same copy makes both forms.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch

from common.blocks import CANONICAL_TOKENS
from common.kv.checksum.definition import ROW_BYTES, Offsets
from common.kv.layout import Geometry

WORD_BYTES = 8
ALIGNED_BYTES = 16
"""Which the kernel reads at once."""


class Runs(NamedTuple):
    """What the bytes of a page are on the wire, `[outer][inner][word of a run]`, and where a run
    is in memory: `outer * outer_step + inner * inner_step` words from the first."""

    words: int
    """Of a run; a whole number of `ROW_BYTES`."""
    outer: int = 1
    inner: int = 1
    outer_step: int = 0
    inner_step: int = 0

    @property
    def page_words(self) -> int:
        return self.words * self.outer * self.inner


class TokenPage(NamedTuple):
    """A page `[head][token][K|V]`, or `[token][head][K|V]`."""

    heads: int
    tokens: int
    token_bytes: int
    """K and V of one token of one head."""
    tokens_first: bool

    @property
    def page_bytes(self) -> int:
        return self.heads * self.tokens * self.token_bytes

    @property
    def canonical_blocks(self) -> int:
        """Canonical blocks in one page; 0 if they do not fill it."""
        return self.tokens // CANONICAL_TOKENS if self.tokens % CANONICAL_TOKENS == 0 else 0

    @property
    def head_step(self) -> int:
        """Bytes from a head to the next."""
        return self.token_bytes if self.tokens_first else self.tokens * self.token_bytes

    @property
    def token_step(self) -> int:
        return self.heads * self.token_bytes if self.tokens_first else self.token_bytes


class CardPages:
    """The blocks of an allocation, in one of the two forms. Steps are in bytes."""

    def __init__(
        self, own: Geometry, page: TokenPage | None = None, heads: range | None = None
    ) -> None:
        """`own`: of the engine's blocks. `page`: what its pages are, for canonical blocks of these
        heads (None: of all). Raises ValueError if its pages are not `page`, or have no canonical
        form."""
        self.own = self.geometry = own
        self._in_one, self._part_step, self._offset = 1, 0, own.offset
        self._run, self._outer, self._inner = own.page_bytes, (1, 0), (1, 0)
        if page is not None:
            self._be_canonical(page, range(page.heads) if heads is None else heads)
        (outer, outer_step), (inner, inner_step) = self._outer, self._inner
        words = [step // WORD_BYTES for step in (self._run, outer_step, inner_step)]
        #: For the kernel.
        self.runs = Runs(words[0], outer, inner, *words[1:])
        #: Words from a layer to the next.
        self.layer_step = own.layer_stride // WORD_BYTES

    def _be_canonical(self, page: TokenPage, heads: range) -> None:
        own, self._in_one = self.own, page.canonical_blocks
        if page.page_bytes != own.page_bytes or not self._in_one:
            raise ValueError(f"pages of {own.page_bytes} bytes have no canonical form: {page}")
        self._part_step = CANONICAL_TOKENS * page.token_step
        self._offset += heads.start * page.head_step
        self._outer = len(heads), page.head_step
        if page.tokens_first:
            self._run, self._inner = page.token_bytes, (CANONICAL_TOKENS, page.token_step)
        else:
            self._run = CANONICAL_TOKENS * page.token_bytes
        size = len(heads) * CANONICAL_TOKENS * page.token_bytes
        blocks = own.blocks * self._in_one
        self.geometry = Geometry(own.layers, blocks, size, size * blocks, size)

    @property
    def fits_kernel(self) -> bool:
        """What is inside a page begins at whole rows if a run is some."""
        steps = self._offset, self.own.layer_stride, self.own.block_stride
        return self._run % ROW_BYTES == 0 and not any(step % ALIGNED_BYTES for step in steps)

    def starts(self, block_ids: Offsets, layer: int) -> Offsets:
        """The word at which each block begins in this layer."""
        blocks, parts = self.split(block_ids)
        first = self._offset + layer * self.own.layer_stride
        return (first + blocks * self.own.block_stride + parts * self._part_step) // WORD_BYTES

    def split(self, block_ids: Offsets) -> tuple[Offsets, Offsets]:
        """The engine's blocks, and which part of each."""
        return np.divmod(block_ids, self._in_one)

    def view(self, flat: torch.Tensor) -> torch.Tensor:
        """The bytes of the whole allocation as `[layer][engine's block][part]` and then as a block
        is on the wire."""
        own, (outer, outer_step), (inner, inner_step) = self.own, self._outer, self._inner
        return flat.as_strided(
            (own.layers, own.blocks, self._in_one, outer, inner, self._run),
            (own.layer_stride, own.block_stride, self._part_step, outer_step, inner_step, 1),
            self._offset,
        )
