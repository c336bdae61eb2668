"""Paged KV of a part: filled with bytes that both processes can compute, and compared with them."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from common.kv.canonical import CanonicalForm
from common.kv.layout import Geometry, HostMemory, KvMemory

if TYPE_CHECKING:
    from common.kv.device.pages import TokenPage

KIB, MIB = 1 << 10, 1 << 20
BACKGROUND = 0xA5
"""In all bytes of D before a handoff, and in those that no handoff may touch after it."""
SPOILED = 0xEE
"""What P writes to blocks that it has withdrawn."""
DELAY_CYCLES = 6_000_000
"""Of the card's clock: some 3 ms."""
FACTOR = 0x9E3779B97F4A7C15 - (1 << 64)
"""Odd, as a signed number of 64 bits: what makes the words of one content differ."""


def layers_first(layers: int, blocks: int, page_bytes: int) -> Geometry:
    """All blocks of a layer lie together, as vLLM lays them out."""
    return Geometry(layers, blocks, page_bytes, blocks * page_bytes, page_bytes)


def blocks_first(layers: int, blocks: int, page_bytes: int, *, gap: int = 0) -> Geometry:
    """All layers of a block lie together, with so many bytes before the first page and between
    blocks."""
    return Geometry(layers, blocks, page_bytes, page_bytes, layers * page_bytes + gap, gap)


def some_blocks(geometry: Geometry, count: int, seed: int) -> list[int]:
    """So many blocks of this memory, in no order."""
    return random.Random(seed).sample(range(geometry.blocks), count)


def content(geometry: Geometry, blocks: int, seed: int, device: str) -> Any:
    """The bytes of a prompt's KV: a tensor `[layer][block][byte]`."""
    import torch

    size = geometry.layers * blocks * geometry.page_bytes
    words = torch.arange(size // 8, dtype=torch.int64, device=device) * FACTOR + seed * 0x10001
    words ^= words >> 31
    return words.view(torch.uint8).view(geometry.layers, blocks, geometry.page_bytes)


class LaidOut(NamedTuple):
    """How an engine lays out its KV."""

    own: Geometry
    """Of its blocks."""
    page: TokenPage | None = None
    """What a page is, where KV travels in the canonical form."""


class FilledMemory:
    """The KV of one engine on the device, as a tensor and as the KV layer sees it. Its blocks are
    those that travel."""

    def __init__(self, laid_out: LaidOut, device: str) -> None:
        import torch

        from common.kv.device.pages import CardPages

        self._laid_out, self._device = laid_out, device
        self._places = CardPages(laid_out.own, laid_out.page)
        self.geometry = self._places.geometry
        self._flat = torch.full((laid_out.own.end,), BACKGROUND, dtype=torch.uint8, device=device)
        self._pages = self._places.view(self._flat)

    def kv_memory(self, card: Any) -> tuple[KvMemory, dict[str, CanonicalForm]]:
        """And its canonical forms. `card`: the `CudaCard` of the device; None where the device is
        the CPU."""
        own, page = self._laid_out
        if card is None:
            return HostMemory(self._flat.numpy(), own), {}
        from common.kv.device.memory import CanonicalDeviceMemory, CopyQueues, DeviceMemory
        from common.kv.device.pages import CardPages

        memory = DeviceMemory(CopyQueues(card, self._flat), CardPages(own))
        return memory, {"": CanonicalDeviceMemory(memory, page)} if page is not None else {}

    def fill(self, block_ids: Sequence[int], seed: int) -> None:
        """These blocks hold the content of this seed."""
        self._put(self._pages, block_ids, self._content(block_ids, seed))

    def fill_late(self, block_ids: Sequence[int], seed: int, groups: int) -> Iterator[int]:
        """The same, after they have been spoiled, and with the card still at it when this returns:
        so many groups of layers one after the other, each long after what was launched before.
        Yields how many layers are filled, or will be."""
        self.spoil(block_ids)
        filled = self._content(block_ids, seed)
        step = -(-self.geometry.layers // groups)
        for first in range(0, self.geometry.layers, step):
            self._delay()
            last = min(first + step, self.geometry.layers)
            self._put(self._pages[first:last], block_ids, filled[first:last])
            yield last

    def spoil(self, block_ids: Sequence[int]) -> None:
        self._pages[:, *self._index(block_ids)] = SPOILED

    def clear(self) -> None:
        """Nothing is in it; the card does that late."""
        self._delay()
        self._flat.fill_(BACKGROUND)

    def wrong_bytes(
        self, block_ids: Sequence[int], seed: int, of: Sequence[int] | None = None
    ) -> int:
        """Bytes of the whole allocation that are not as they are when these blocks hold the content
        of this seed and nothing else was written. `of`: which of the blocks were; None: all."""
        expected = self._flat.new_full(self._flat.shape, BACKGROUND)
        filled, these = self._content(block_ids, seed), list(block_ids)
        if of is not None:
            filled, these = filled[:, list(of)], [these[at] for at in of]
        self._put(self._places.view(expected), these, filled)
        return int((expected != self._flat).sum())

    def _delay(self) -> None:
        """What is launched after this runs some milliseconds later."""
        import torch

        if self._device != "cpu":
            torch.cuda._sleep(DELAY_CYCLES)

    def _content(self, block_ids: Sequence[int], seed: int) -> Any:
        return content(self.geometry, len(block_ids), seed, self._device)

    def _index(self, block_ids: Sequence[int]) -> tuple[Any, ...]:
        """Their places in a view of pages, after the layer."""
        import torch

        parts = self._places.split(np.array(block_ids, np.int64))
        return tuple(torch.from_numpy(part).to(self._device) for part in parts)

    def _put(self, pages: Any, block_ids: Sequence[int], filled: Any) -> None:
        pages[:, *self._index(block_ids)] = filled.view(*filled.shape[:2], *pages.shape[3:])
