"""Where KV lives in memory: paged blocks, all layers, one allocation.

Theory of operation: a *page* is one block of one layer, `page_bytes` contiguous bytes that only the
engine's kernels understand (on CPU, K is stored transposed inside it), so nothing smaller is ever
copied. The page of layer l, block b starts at `offset + l * layer_stride + b * block_stride`. On
the wire a run of blocks is `[layer][block][page]`, contiguous. `KvMemory` is the interface to
memory of any kind; `HostMemory` implements it over a numpy view, and `SeveralRegions` joins
memories whose pages differ in size. Both directions sum up the bytes while they copy
(`checksum/kernel.py`). The engine's blocks are written with non-temporal stores that bypass the
caches. Memory on a card has copies that run by themselves, `DeviceCopies` (`device/`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Protocol, TypeAlias

import numpy as np

from common.kv.checksum.definition import LINE_BYTES, ROW_BYTES, Bytes, Offsets, Sum
from common.kv.checksum.kernel import copy_pages, sum_of
from common.kv.compression.fp8 import PageFormat

if TYPE_CHECKING:
    import torch

Payload: TypeAlias = "Bytes | torch.Tensor"
"""Flat bytes in host memory, or on a card."""


@dataclass(frozen=True, slots=True)
class Geometry:
    """Where the pages of an allocation lie. Strides and offset are in bytes."""

    layers: int
    blocks: int
    page_bytes: int
    layer_stride: int
    """From a page to that of the next layer, same block."""
    block_stride: int
    """From a page to that of the next block, same layer."""
    offset: int = 0
    """Of the first page in the allocation."""
    page_format: PageFormat | None = None
    """What a page holds; None where that is not known, and such KV is never compressed."""

    @property
    def block_bytes(self) -> int:
        """One block over all layers: the bytes that moving it takes."""
        return self.layers * self.page_bytes

    @property
    def fp8_page_bytes(self) -> int:
        """The size of a page as fp8; 0 if it cannot be compressed."""
        return self.page_format.fp8_page_bytes if self.page_format is not None else 0

    @property
    def end(self) -> int:
        """One past the last byte used."""
        last_page = (self.layers - 1) * self.layer_stride + (self.blocks - 1) * self.block_stride
        return self.offset + last_page + self.page_bytes

    def wire_shape(self, blocks: int, data: Bytes, layers: range | None) -> tuple[int, int, int]:
        """The shape `(layers, blocks, page_bytes)` of `data`, which holds these layers (None: all)
        of so many blocks. Raises ValueError if `data` is not contiguous or of another size."""
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
        if self.page_format is not None and self.page_format.page_bytes != self.page_bytes:
            raise ValueError(f"a page of {self.page_bytes} bytes is not {self.page_format}")
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


class Mark(Protocol):
    """A point in the work of a stream of a card."""

    def query(self) -> bool:
        """Whether the work before it is done. Raises RuntimeError if the card has failed."""
        ...

    def synchronize(self) -> None:
        """Returns when it is."""


class DeviceCopies(Protocol):
    """Copies of paged KV on a card, which run while the KV thread goes on. All methods but
    `order_after_copies` are called on the KV thread."""

    def enter(self) -> None:
        """The KV thread works with the card from now on."""

    def start_gather(
        self,
        block_ids: Sequence[int],
        out: Payload,
        layers: range,
        after: Mark | None,
        done: Callable[[Sum], None],
    ) -> None:
        """As `KvMemory.gather`, to memory on the card or in the host, once `after` has passed.
        `done` is called later, on the KV thread, when `out` is complete; until then `out` and the
        blocks must stay as they are."""

    def start_scatter(
        self,
        block_ids: Sequence[int],
        data: Payload,
        layers: range,
        after: Mark | None,
        done: Callable[[Sum], None],
    ) -> None:
        """The reverse."""

    def order_after_copies(self) -> None:
        """What the calling thread gives to the card from now on runs after every copy that was
        started. Any thread may call it."""

    def poll(self) -> None:
        """Calls `done` for what has ended."""

    def reserve(self, size: int) -> bool:
        """Once, before the first copy: messages through host memory have so many bytes at most.
        Returns False if the card has no room for two."""
        ...

    def staging(self, size: int) -> Payload | None:
        """So many bytes on the card; None if it has no room for them."""
        ...

    def lock_pages(self, memory: Bytes) -> bool:
        """Makes host memory one that the card reaches. Returns whether it can be made so."""
        ...

    def close(self) -> None:
        """Returns when no copy runs any more."""


class KvMemory(Protocol):
    """Paged KV that can be copied out to and in from contiguous host bytes, whole blocks only."""

    @property
    def geometry(self) -> Geometry: ...

    @property
    def device(self) -> DeviceCopies | None:
        """None in host memory, and where `gather` and `scatter` are all there is."""
        ...

    def gather(self, block_ids: Sequence[int], out: Bytes, layers: range | None = None) -> Sum:
        """Copies these layers (None: all) of the blocks to `out`, which has their exact size.
        Returns the sum of `out`."""
        ...

    def scatter(self, block_ids: Sequence[int], data: Bytes, layers: range | None = None) -> Sum:
        """The reverse. Block ids must be distinct. Returns the sum of `data`."""
        ...


class HostMemory:
    """Paged KV in host memory: `base` is a flat, contiguous, writable uint8 view of it all."""

    device = None

    def __init__(self, base: Bytes, geometry: Geometry) -> None:
        if base.dtype != np.uint8 or base.ndim != 1 or not base.flags.c_contiguous:
            raise ValueError("KV memory must be a flat contiguous uint8 array")
        if not base.flags.writeable:
            raise ValueError("KV memory must be writable")
        geometry.check(base.nbytes)
        self.geometry = geometry
        self._base = base
        self._pages = np.lib.stride_tricks.as_strided(
            base[geometry.offset :],
            shape=(geometry.layers, geometry.blocks, geometry.page_bytes),
            strides=(geometry.layer_stride, geometry.block_stride, 1),
        )
        self._layer_at = geometry.offset + geometry.layer_stride * np.arange(geometry.layers)
        first = base.ctypes.data + geometry.offset
        steps = (geometry.layer_stride, geometry.block_stride, geometry.page_bytes)
        #: Whether every page begins on a line.
        self.on_lines = not any(step % LINE_BYTES for step in (first, *steps))
        self._in_rows = geometry.page_bytes % ROW_BYTES == 0

    def gather(self, block_ids: Sequence[int], out: Bytes, layers: range | None = None) -> Sum:
        ids, these = self._checked(block_ids, out, layers)
        if self._in_rows:
            wire, memory = self._wire_offsets(ids, these), self._memory_offsets(ids, these)
            page_bytes = self.geometry.page_bytes
            return copy_pages(out, wire, self._base, memory, page_bytes, nontemporal=False)
        out.reshape(len(these), len(ids), -1)[:] = self._pages[these.start : these.stop, ids]
        return sum_of(out)

    def scatter(self, block_ids: Sequence[int], data: Bytes, layers: range | None = None) -> Sum:
        if len(set(block_ids)) != len(block_ids):
            raise ValueError("a block may be written once only")
        ids, these = self._checked(block_ids, data, layers)
        if self._in_rows:
            wire, memory = self._wire_offsets(ids, these), self._memory_offsets(ids, these)
            page_bytes, streams = self.geometry.page_bytes, self.on_lines
            return copy_pages(self._base, memory, data, wire, page_bytes, nontemporal=streams)
        self._pages[these.start : these.stop, ids] = data.reshape(len(these), len(ids), -1)
        return sum_of(data)

    def within_pages(self, first: int, size: int) -> HostMemory:
        """The same memory with the bytes [first, first + size) of each page as its pages."""
        own = self.geometry
        kept = replace(own, page_bytes=size, offset=own.offset + first, page_format=None)
        return HostMemory(self._base, kept)

    @property
    def pages(self) -> Bytes:
        """A live view of all pages, `[layer][block][byte]`."""
        return self._pages

    def page(self, layer: int, block: int) -> Bytes:
        """A live view of one page."""
        page: Bytes = self._pages[layer, block]
        return page

    def _checked(
        self, block_ids: Sequence[int], data: Bytes, layers: range | None
    ) -> tuple[Offsets, range]:
        """The ids as an array, and the layers as a range. Nothing after this checks bounds."""
        geometry = self.geometry
        geometry.wire_shape(len(block_ids), data, layers)
        if block_ids and not 0 <= min(block_ids) <= max(block_ids) < geometry.blocks:
            raise ValueError(f"block {min(block_ids)} or {max(block_ids)} is outside this memory")
        these = range(geometry.layers) if layers is None else layers
        return np.array(block_ids, np.int64), these

    def _memory_offsets(self, ids: Offsets, layers: range) -> Offsets:
        """Where these pages begin in memory, in wire order."""
        layer_at = self._layer_at[layers.start : layers.stop, None]
        return (layer_at + ids * self.geometry.block_stride).ravel()

    def _wire_offsets(self, ids: Offsets, layers: range) -> Offsets:
        """Where these pages begin on the wire, in wire order."""
        return np.arange(len(layers) * len(ids), dtype=np.int64) * self.geometry.page_bytes


class SeveralRegions:
    """Memory whose blocks consist of pages in several regions, for layers whose pages differ in
    size. To the KV layer a block is one page. On the wire a run of blocks is that of the first
    region, then that of the next."""

    device = None

    def __init__(self, regions: Sequence[KvMemory]) -> None:
        """All regions have the same number of blocks."""
        self._regions = regions
        blocks = regions[0].geometry.blocks
        page = sum(region.geometry.block_bytes for region in regions)
        self.geometry = Geometry(1, blocks, page, page * blocks, page)

    def gather(self, block_ids: Sequence[int], out: Bytes, layers: range | None = None) -> Sum:
        for region, part in self._parts(block_ids, out, layers):
            region.gather(block_ids, part)
        return sum_of(out)

    def scatter(self, block_ids: Sequence[int], data: Bytes, layers: range | None = None) -> Sum:
        for region, part in self._parts(block_ids, data, layers):
            region.scatter(block_ids, part)
        return sum_of(data)

    def _parts(
        self, block_ids: Sequence[int], data: Bytes, layers: range | None
    ) -> Iterator[tuple[KvMemory, Bytes]]:
        self.geometry.wire_shape(len(block_ids), data, layers)
        at = 0
        for region in self._regions:
            end = at + len(block_ids) * region.geometry.block_bytes
            yield region, data[at:end]
            at = end
