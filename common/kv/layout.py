"""Where KV lives in memory: paged blocks, all layers, one allocation.

Theory of operation: a *page* is one block of one layer, `page_bytes` contiguous bytes that only the
engine's kernels understand (on CPU, K is stored transposed inside it), so nothing smaller is ever
copied. The page of layer l, block b starts at `offset + l * layer_stride + b * block_stride`. In
flight a run of blocks is `[layer][block][page]`, contiguous. `KvMemory` is the seam for memory
that is not host memory; `HostMemory` is the one over a numpy view.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from common.kv.codec import Format

Bytes = NDArray[np.uint8]


@dataclass(frozen=True, slots=True)
class Geometry:
    """All in bytes but `layers` and `blocks`. `inside`: what a page holds, None where that is not
    known: such KV is never compressed."""

    layers: int
    blocks: int
    page_bytes: int
    layer_stride: int
    block_stride: int
    offset: int = 0
    inside: Format | None = None

    @property
    def block_bytes(self) -> int:
        """One block over all layers: what it costs to move it."""
        return self.layers * self.page_bytes

    @property
    def fp8_page_bytes(self) -> int:
        """A page as fp8; 0: it cannot be compressed."""
        return self.inside.fp8_page_bytes if self.inside is not None else 0

    @property
    def end(self) -> int:
        """One past the last byte used."""
        last_page = (self.layers - 1) * self.layer_stride + (self.blocks - 1) * self.block_stride
        return self.offset + last_page + self.page_bytes

    def flight(self, blocks: int, data: Bytes, layers: range | None) -> tuple[int, int, int]:
        """The shape of these layers of so many blocks in `data`. Raises ValueError if it is not
        exactly that."""
        layers = range(self.layers) if layers is None else layers
        if layers.step != 1 or not 0 <= layers.start < layers.stop <= self.layers:
            raise ValueError(f"layers {layers} of {self.layers}")
        expected = len(layers) * blocks * self.page_bytes
        if data.dtype != np.uint8 or data.nbytes != expected or not data.flags.c_contiguous:
            raise ValueError(f"expected {expected} contiguous bytes for {blocks} blocks")
        return len(layers), blocks, self.page_bytes

    def check(self, allocation_bytes: int) -> None:
        """Raises ValueError if pages overlap each other or leave the allocation."""
        if min(self.layers, self.blocks, self.page_bytes) < 1 or self.offset < 0:
            raise ValueError(f"empty or negative geometry: {self}")
        if self.inside is not None and self.inside.page_bytes != self.page_bytes:
            raise ValueError(f"a page of {self.page_bytes} bytes is not {self.inside}")
        outer, inner = (
            max(self.layer_stride, self.block_stride),
            min(self.layer_stride, self.block_stride),
        )
        inner_count = self.blocks if self.block_stride <= self.layer_stride else self.layers
        outer_count = self.layers if self.block_stride <= self.layer_stride else self.blocks
        overlaps = inner_count > 1 and inner < self.page_bytes
        overlaps |= outer_count > 1 and outer < (inner_count - 1) * inner + self.page_bytes
        if overlaps:
            raise ValueError(f"pages overlap: {self}")
        if self.end > allocation_bytes:
            raise ValueError(f"pages end at byte {self.end} of {allocation_bytes}: {self}")


class KvMemory(Protocol):
    """Paged KV that can be copied out to and in from contiguous host bytes, whole blocks only."""

    @property
    def geometry(self) -> Geometry: ...

    def gather(self, block_ids: Sequence[int], out: Bytes, layers: range | None = None) -> None:
        """Copies these layers (None: all) of the blocks to `out`, which has their exact size."""
        ...

    def scatter(self, block_ids: Sequence[int], data: Bytes, layers: range | None = None) -> None:
        """The reverse. Block ids must be distinct."""
        ...


class HostMemory:
    """Paged KV in host memory: `base` is a flat, contiguous, writable uint8 view of it all."""

    def __init__(self, base: Bytes, geometry: Geometry) -> None:
        if base.dtype != np.uint8 or base.ndim != 1 or not base.flags.c_contiguous:
            raise ValueError("KV memory must be a flat contiguous uint8 array")
        if not base.flags.writeable:
            raise ValueError("KV memory must be writable")
        geometry.check(base.nbytes)
        self.geometry = geometry
        self._pages = np.lib.stride_tricks.as_strided(
            base[geometry.offset :],
            shape=(geometry.layers, geometry.blocks, geometry.page_bytes),
            strides=(geometry.layer_stride, geometry.block_stride, 1),
        )

    def gather(self, block_ids: Sequence[int], out: Bytes, layers: range | None = None) -> None:
        pages, flight = self._flight(block_ids, out, layers)
        for at, first, count in self._runs(block_ids):
            flight[:, at : at + count] = pages[:, first : first + count]

    def scatter(self, block_ids: Sequence[int], data: Bytes, layers: range | None = None) -> None:
        if len(set(block_ids)) != len(block_ids):
            raise ValueError("a block may be written once only")
        pages, flight = self._flight(block_ids, data, layers)
        for at, first, count in self._runs(block_ids):
            pages[:, first : first + count] = flight[:, at : at + count]

    def page(self, layer: int, block: int) -> Bytes:
        """A live view of one page."""
        page: Bytes = self._pages[layer, block]
        return page

    def _flight(
        self, block_ids: Sequence[int], data: Bytes, layers: range | None
    ) -> tuple[NDArray[np.uint8], NDArray[np.uint8]]:
        """The pages of these layers, and `data` in the shape of their flight."""
        shape = self.geometry.flight(len(block_ids), data, layers)
        pages = self._pages if layers is None else self._pages[layers.start : layers.stop]
        return pages, data.reshape(shape)

    def _runs(self, block_ids: Sequence[int]) -> Iterator[tuple[int, int, int]]:
        """(index in flight, first block id, count) of each run of consecutive ids."""
        at = 0
        while at < len(block_ids):
            first = block_ids[at]
            count = 1
            while at + count < len(block_ids) and block_ids[at + count] == first + count:
                count += 1
            if not 0 <= first <= first + count <= self.geometry.blocks:
                raise ValueError(f"block {first} + {count} is outside 0..{self.geometry.blocks}")
            yield at, first, count
            at += count
