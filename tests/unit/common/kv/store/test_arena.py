"""Blocks go in and come out as they were, or are told to be damaged."""

from __future__ import annotations

import numpy as np
import pytest

from common.kv.layout import Geometry, HostMemory
from common.kv.store.arena import Arena
from common.kv.store.table import BlockCopy, BlockName
from tests.rigs import arenas

LAYERS, BLOCKS, PAGE = 3, 6, 512
GEOMETRY = Geometry(LAYERS, BLOCKS, PAGE, BLOCKS * PAGE, PAGE)
NAME = BlockName(0, b"a" * 32)


@pytest.fixture
def memory() -> HostMemory:
    base = np.random.default_rng(5).integers(0, 256, GEOMETRY.end, dtype=np.uint8)
    return HostMemory(base, GEOMETRY)


@pytest.fixture
def arena(memory: HostMemory) -> Arena:
    return Arena(memory, 2)


def pages(memory: HostMemory, block: int) -> list[bytes]:
    return [memory.page(layer, block).tobytes() for layer in range(LAYERS)]


def test_a_block_comes_back_into_another_one(memory: HostMemory, arena: Arena) -> None:
    before = pages(memory, 4)
    arenas.write(arena, BlockCopy(0, 5, NAME._replace(block_hash=b"b" * 32)))
    arenas.write(arena, BlockCopy(1, 4, NAME))
    others = [pages(memory, block) for block in (0, 1, 3, 5)]
    assert arenas.read(arena, BlockCopy(1, 2, NAME))
    assert pages(memory, 2) == before
    assert [pages(memory, block) for block in (0, 1, 3, 5)] == others
    assert arena.bytes.nbytes == 2 * LAYERS * PAGE


@pytest.mark.parametrize("byte", [0, PAGE, LAYERS * PAGE - 1])
def test_a_flipped_bit_is_found(arena: Arena, byte: int) -> None:
    arenas.write(arena, BlockCopy(1, 4, NAME))
    arena.bytes[LAYERS * PAGE + byte] ^= 1
    assert not arenas.read(arena, BlockCopy(1, 2, NAME))


def test_a_slot_that_holds_another_block_or_none_is_found(arena: Arena) -> None:
    assert not arenas.read(arena, BlockCopy(0, 2, NAME))
    arenas.write(arena, BlockCopy(0, 4, NAME))
    assert not arenas.read(arena, BlockCopy(0, 2, BlockName(0, b"b" * 32)))
    assert not arenas.read(arena, BlockCopy(0, 2, BlockName(1, NAME.block_hash)))
    assert arenas.read(arena, BlockCopy(0, 2, NAME))
