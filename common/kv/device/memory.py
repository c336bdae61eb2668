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

from common.kv.checksum.definition import Bytes, Sum
from common.kv.checksum.kernel import sum_of
from common.kv.device.card import Card
from common.kv.device.copy_queue import CopyQueue
from common.kv.device.pages import WORD_BYTES, CardPages, TokenPage
from common.kv.layout import Mark, Payload


class CopyQueues:
    """Of one allocation, one each way. All that copies in it shares them, so that the engine's
    work is ordered with all of it."""

    def __init__(self, card: Card, flat: torch.Tensor) -> None:
        """`flat`: a uint8 view of the whole allocation."""
        words = flat[: flat.numel() // WORD_BYTES * WORD_BYTES].view(torch.int64)
        self.card, self.flat = card, flat
        self.out = CopyQueue(card, words, gathers=True)
        self.into = CopyQueue(card, words, gathers=False)


class DeviceMemory:
    """Blocks of an allocation, as `pages` says where they are."""

    def __init__(self, queues: CopyQueues, pages: CardPages) -> None:
        """Raises ValueError if pages overlap each other or leave the allocation."""
        pages.own.check(queues.flat.numel())
        self.queues, self.pages, self.geometry = queues, pages, pages.geometry
        self._view = pages.view(queues.flat)
        #: None if the pages do not fit the kernel.
        self.device: DeviceMemory | None = self if pages.fits_kernel else None

    # ------------------------------------------------------------ as DeviceCopies

    def enter(self) -> None:
        self.queues.card.enter()

    def start_gather(
        self,
        block_ids: Sequence[int],
        out: Payload,
        layers: range,
        after: Mark | None,
        done: Callable[[Sum], None],
    ) -> None:
        ids = self._checked(block_ids, out.nbytes, layers)
        self.queues.out.start(self.pages, ids, out, layers, after, done)

    def start_scatter(
        self,
        block_ids: Sequence[int],
        data: Payload,
        layers: range,
        after: Mark | None,
        done: Callable[[Sum], None],
    ) -> None:
        _check_distinct(block_ids)
        ids = self._checked(block_ids, data.nbytes, layers)
        self.queues.into.start(self.pages, ids, data, layers, after, done)

    def order_after_copies(self) -> None:
        for mark in (self.queues.out.last, self.queues.into.last):
            if mark is not None:
                self.queues.card.order_after(mark)

    def poll(self) -> None:
        self.queues.out.poll()
        self.queues.into.poll()

    def reserve(self, size: int) -> bool:
        try:
            self.queues.out.reserve(size)
            self.queues.into.reserve(size)
        except RuntimeError:
            return False
        return True

    def staging(self, size: int) -> torch.Tensor | None:
        try:
            return self.queues.card.bytes_on_card(size)
        except RuntimeError:
            return None

    def lock_pages(self, memory: Bytes) -> bool:
        return self.queues.card.lock_pages(memory)

    def close(self) -> None:
        self.queues.out.close()
        self.queues.into.close()

    # ------------------------------------------------------------ as KvMemory

    def gather(self, block_ids: Sequence[int], out: Bytes, layers: range | None = None) -> Sum:
        at, staged = self._staged(block_ids, out, layers)
        staged.copy_(self._view[at])
        return sum_of(out)

    def scatter(self, block_ids: Sequence[int], data: Bytes, layers: range | None = None) -> Sum:
        _check_distinct(block_ids)
        at, staged = self._staged(block_ids, data, layers)
        self._view[at] = staged.to(self.queues.flat.device)
        total = sum_of(data)
        self.queues.card.mark().synchronize()
        return total

    def _staged(
        self, block_ids: Sequence[int], data: Bytes, layers: range | None
    ) -> tuple[tuple[slice | torch.Tensor, ...], torch.Tensor]:
        """What of `_view` they are, and `data` in its shape."""
        shape = self.geometry.wire_shape(len(block_ids), data, layers)
        ids = self._checked(block_ids, data.nbytes, range(shape[0]))
        these = slice(None) if layers is None else slice(layers.start, layers.stop)
        parts = (torch.from_numpy(part) for part in self.pages.split(ids))
        places = (part.to(self.queues.flat.device) for part in parts)
        staged = torch.from_numpy(data.reshape(*shape[:2], *self._view.shape[3:]))
        return (these, *places), staged

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


class CanonicalDeviceMemory(DeviceMemory):
    """The same memory as canonical blocks."""

    def __init__(self, whole: DeviceMemory, page: TokenPage, heads: range | None = None) -> None:
        """`whole`: of the engine's blocks. The rest, and errors: as of `CardPages`."""
        super().__init__(whole.queues, CardPages(whole.geometry, page, heads))
        self._whole, self._page = whole, page
        self._range = range(page.heads) if heads is None else heads

    @property
    def heads(self) -> int:
        return len(self._range)

    def part(self, number: int, parts: int) -> CanonicalDeviceMemory:
        """The same memory with one of so many equal ranges of its heads only."""
        size = self.heads // parts
        heads = self._range[number * size : (number + 1) * size]
        return CanonicalDeviceMemory(self._whole, self._page, heads)
