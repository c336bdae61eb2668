"""Paged KV of a part: filled with bytes that both processes can compute, and compared with them."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from typing import Any

from common.kv.layout import Geometry, HostMemory, KvMemory

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


class FilledMemory:
    """The KV of one engine on the device, as a tensor and as the KV layer sees it."""

    def __init__(self, geometry: Geometry, device: str) -> None:
        import torch

        self.geometry = geometry
        self._device = device
        self._flat = torch.full((geometry.end,), BACKGROUND, dtype=torch.uint8, device=device)
        self._pages = self._pages_of(self._flat)

    def kv_memory(self, card: Any) -> KvMemory:
        """`card`: the `CudaCard` of the device; None where the device is the CPU."""
        if card is None:
            return HostMemory(self._flat.numpy(), self.geometry)
        from common.kv.device.memory import DeviceMemory

        return DeviceMemory(self._flat, self.geometry, card)

    def fill(self, block_ids: Sequence[int], seed: int) -> None:
        """These blocks hold the content of this seed."""
        self._pages[:, self._index(block_ids)] = self._content(block_ids, seed)

    def fill_late(self, block_ids: Sequence[int], seed: int, groups: int) -> Iterator[int]:
        """The same, after they have been spoiled, and with the card still at it when this returns:
        so many groups of layers one after the other, each long after what was launched before.
        Yields how many layers are filled, or will be."""
        self.spoil(block_ids)
        index, filled = self._index(block_ids), self._content(block_ids, seed)
        step = -(-self.geometry.layers // groups)
        for first in range(0, self.geometry.layers, step):
            self._delay()
            last = min(first + step, self.geometry.layers)
            self._pages[first:last, index] = filled[first:last]
            yield last

    def spoil(self, block_ids: Sequence[int]) -> None:
        self._pages[:, self._index(block_ids)] = SPOILED

    def clear(self) -> None:
        """Nothing is in it; the card does that late."""
        self._delay()
        self._flat.fill_(BACKGROUND)

    def wrong_bytes(self, block_ids: Sequence[int], seed: int) -> int:
        """Bytes of the whole allocation that are not as they are when these blocks hold the content
        of this seed and nothing else was written."""
        expected = self._flat.new_full(self._flat.shape, BACKGROUND)
        self._pages_of(expected)[:, self._index(block_ids)] = self._content(block_ids, seed)
        return int((expected != self._flat).sum())

    def _delay(self) -> None:
        """What is launched after this runs some milliseconds later."""
        import torch

        if self._device != "cpu":
            torch.cuda._sleep(DELAY_CYCLES)

    def _content(self, block_ids: Sequence[int], seed: int) -> Any:
        return content(self.geometry, len(block_ids), seed, self._device)

    def _index(self, block_ids: Sequence[int]) -> Any:
        import torch

        return torch.tensor(block_ids, dtype=torch.int64, device=self._device)

    def _pages_of(self, flat: Any) -> Any:
        own = self.geometry
        shape = (own.layers, own.blocks, own.page_bytes)
        return flat.as_strided(shape, (own.layer_stride, own.block_stride, 1), own.offset)
