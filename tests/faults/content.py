"""What the KV of a prompt is: known to both ends, so that a block can be checked where it lands."""

from __future__ import annotations

import hashlib

import numpy as np

from common.config import KvConfig
from common.kv.layout import Geometry
from tests.faults.plan import MESSAGE_BLOCKS

LAYERS, BLOCKS, PAGE = 2, 1536, 4096
GEOMETRY = Geometry(LAYERS, BLOCKS, PAGE, BLOCKS * PAGE, PAGE)
FREE = 0xDD
"""What every byte of a free block is."""

CONFIG = KvConfig(
    message_bytes=MESSAGE_BLOCKS * LAYERS * PAGE,
    staging_mib=1,
    lease_ms=4000.0,
    load_timeout_ms=3000.0,
)
_NOISE = np.random.default_rng(7).integers(0, 256, 1 << 22, dtype=np.uint8)


def block_content(name: str, block: int) -> np.ndarray:
    """`block_bytes` bytes, `[layer][page]`, of block number `block` of a prompt."""
    digest = hashlib.blake2b(f"{name}:{block}".encode(), digest_size=4).digest()
    at = int.from_bytes(digest, "little") % (_NOISE.nbytes - GEOMETRY.block_bytes)
    return _NOISE[at : at + GEOMETRY.block_bytes]


class Pool:
    """Blocks of one side's memory; every free one is full of `FREE`, so that a write that comes
    after its handoff shows."""

    def __init__(self) -> None:
        self.base = np.full(GEOMETRY.end, FREE, np.uint8)
        self.pages = self.base.reshape(LAYERS, BLOCKS, PAGE)
        self.free = list(range(BLOCKS))
        self.dirty = 0

    def take(self, count: int) -> list[int]:
        """Raises IndexError when there are not so many: the driver bounds what is in flight."""
        taken = [self.free.pop(0) for _ in range(count)]
        self.check(taken)
        return taken

    def give(self, blocks: list[int]) -> None:
        self.pages[:, blocks] = FREE
        self.free += blocks

    def write(self, block: int, name: str, number: int) -> None:
        self.pages[:, block] = block_content(name, number).reshape(LAYERS, PAGE)

    def holds(self, block: int, name: str, number: int) -> bool:
        return np.array_equal(
            self.pages[:, block], block_content(name, number).reshape(LAYERS, PAGE)
        )

    def check(self, blocks: list[int]) -> None:
        self.dirty += int((self.pages[:, blocks] != FREE).any(axis=(0, 2)).sum())
