"""Paged KV on a card.

Copies that the KV thread starts run beside the engine's work, on two streams of their own, one each
way (`copy_queue.py`). They are ordered with the engine's stream by marks in both directions, and
nobody waits for that stream on the host: a copy runs after the mark that it is given, and what the
engine launches after `order_after_copies` runs after all copies that were started before. `gather`
and `scatter` are for what these copies do not fit, such as KV that is compressed on the way: they
go through memory that is not page-locked, and wait.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import torch
from numpy.typing import NDArray

from common.kv.checksum.definition import ROW_BYTES, Bytes, Sum
from common.kv.checksum.kernel import sum_of
from common.kv.device.card import Card
from common.kv.device.copy_queue import WORD_BYTES, CopyQueue
from common.kv.layout import Geometry, Mark, Payload

ALIGNED_BYTES = 16
"""Which the kernel reads at once."""


class DeviceMemory:
    """`flat`: a uint8 view of the whole allocation."""

    def __init__(self, flat: torch.Tensor, geometry: Geometry, card: Card) -> None:
        geometry.check(flat.numel())
        self.geometry = geometry
        self._card = card
        self._pages = flat.as_strided(
            (geometry.layers, geometry.blocks, geometry.page_bytes),
            (geometry.layer_stride, geometry.block_stride, 1),
            geometry.offset,
        )
        #: None if the pages do not fit the kernel.
        self.device: DeviceMemory | None = self if _fits(geometry) else None
        if self.device is not None:
            words = flat[: flat.numel() // WORD_BYTES * WORD_BYTES].view(torch.int64)
            self._out = CopyQueue(card, words, geometry, gathers=True)
            self._in = CopyQueue(card, words, geometry, gathers=False)

    # ------------------------------------------------------------ as DeviceCopies

    def enter(self) -> None:
        self._card.enter()

    def start_gather(
        self,
        block_ids: Sequence[int],
        out: Payload,
        layers: range,
        after: Mark | None,
        done: Callable[[Sum], None],
    ) -> None:
        self._out.start(self._checked(block_ids, out.nbytes, layers), out, layers, after, done)

    def start_scatter(
        self,
        block_ids: Sequence[int],
        data: Payload,
        layers: range,
        after: Mark | None,
        done: Callable[[Sum], None],
    ) -> None:
        _check_distinct(block_ids)
        self._in.start(self._checked(block_ids, data.nbytes, layers), data, layers, after, done)

    def order_after_copies(self) -> None:
        for mark in (self._out.last, self._in.last):
            if mark is not None:
                self._card.order_after(mark)

    def poll(self) -> None:
        self._out.poll()
        self._in.poll()

    def reserve(self, size: int) -> bool:
        try:
            self._out.reserve(size)
            self._in.reserve(size)
        except RuntimeError:
            return False
        return True

    def staging(self, size: int) -> torch.Tensor | None:
        try:
            return self._card.bytes_on_card(size)
        except RuntimeError:
            return None

    def lock_pages(self, memory: Bytes) -> bool:
        return self._card.lock_pages(memory)

    def close(self) -> None:
        self._out.close()
        self._in.close()

    # ------------------------------------------------------------ as KvMemory

    def gather(self, block_ids: Sequence[int], out: Bytes, layers: range | None = None) -> Sum:
        pages, staged = self._staged(block_ids, out, layers)
        staged.copy_(pages.index_select(1, self._index(block_ids)))
        return sum_of(out)

    def scatter(self, block_ids: Sequence[int], data: Bytes, layers: range | None = None) -> Sum:
        _check_distinct(block_ids)
        pages, staged = self._staged(block_ids, data, layers)
        pages.index_copy_(1, self._index(block_ids), staged.to(pages.device))
        total = sum_of(data)
        self._card.mark().synchronize()
        return total

    def _staged(
        self, block_ids: Sequence[int], data: Bytes, layers: range | None
    ) -> tuple[torch.Tensor, torch.Tensor]:
        shape = self.geometry.wire_shape(len(block_ids), data, layers)
        self._checked(block_ids, data.nbytes, range(shape[0]))
        pages = self._pages if layers is None else self._pages[layers.start : layers.stop]
        return pages, torch.from_numpy(data.reshape(shape))

    def _index(self, block_ids: Sequence[int]) -> torch.Tensor:
        return torch.tensor(block_ids, dtype=torch.int64, device=self._pages.device)

    def _checked(self, block_ids: Sequence[int], size: int, layers: range) -> NDArray[np.int64]:
        """The ids as an array. Nothing after this checks bounds."""
        geometry, ids = self.geometry, np.array(block_ids, np.int64)
        if len(ids) and not 0 <= ids.min() <= ids.max() < geometry.blocks:
            raise ValueError(f"a block is outside 0..{geometry.blocks}")
        if layers.step != 1 or not 0 <= layers.start < layers.stop <= geometry.layers:
            raise ValueError(f"layers {layers} of {geometry.layers}")
        if size != len(layers) * len(ids) * geometry.page_bytes:
            raise ValueError(f"{size} bytes for {len(ids)} blocks")
        return ids


def _check_distinct(block_ids: Sequence[int]) -> None:
    if len(set(block_ids)) != len(block_ids):
        raise ValueError("a block may be written once only")


def _fits(geometry: Geometry) -> bool:
    steps = geometry.offset, geometry.layer_stride, geometry.block_stride
    return geometry.page_bytes % ROW_BYTES == 0 and not any(step % ALIGNED_BYTES for step in steps)
