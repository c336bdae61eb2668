"""Paged memory: what gather takes out, scatter puts back, and nothing else is touched."""

import numpy as np
import pytest

from common.kv.layout import Geometry, HostMemory

PAGE = 24


def memory(geometry: Geometry, extra: int = 0) -> tuple[np.ndarray, HostMemory]:
    base = np.arange(geometry.end + extra, dtype=np.uint64).astype(np.uint8)
    return base, HostMemory(base, geometry)


LAYER_OUTER = Geometry(
    layers=3, blocks=8, page_bytes=PAGE, layer_stride=8 * PAGE, block_stride=PAGE
)
BLOCK_OUTER = Geometry(
    layers=3, blocks=8, page_bytes=PAGE, layer_stride=PAGE, block_stride=3 * PAGE
)
PADDED = Geometry(3, 8, PAGE, layer_stride=8 * (PAGE + 8) + 40, block_stride=PAGE + 8, offset=16)


@pytest.mark.parametrize("geometry", [LAYER_OUTER, BLOCK_OUTER, PADDED])
@pytest.mark.parametrize("blocks", [[0], [7], [2, 3, 4], [5, 1, 2, 7], [7, 6, 5, 4, 3, 2, 1, 0]])
def test_gather_is_layer_block_page_and_scatter_is_its_inverse(
    geometry: Geometry, blocks: list[int]
) -> None:
    base, source = memory(geometry)
    flight = np.zeros(len(blocks) * geometry.block_bytes, np.uint8)
    source.gather(blocks, flight)
    at = 0
    for layer in range(geometry.layers):
        for block in blocks:
            start = geometry.offset + layer * geometry.layer_stride + block * geometry.block_stride
            assert (flight[at : at + PAGE] == base[start : start + PAGE]).all()
            at += PAGE
    target_base = np.full(geometry.end, 255, np.uint8)
    target = HostMemory(target_base, geometry)
    moved = [(block + 3) % 8 for block in blocks]
    target.scatter(moved, flight)
    for layer in range(geometry.layers):
        for source_block, block in zip(blocks, moved, strict=True):
            assert (target.page(layer, block) == source.page(layer, source_block)).all()
        for block in set(range(8)) - set(moved):
            assert (target.page(layer, block) == 255).all()


@pytest.mark.parametrize("geometry", [LAYER_OUTER, BLOCK_OUTER, PADDED])
def test_some_layers_move_alone(geometry: Geometry) -> None:
    _, source = memory(geometry)
    flight = np.zeros(2 * 2 * PAGE, np.uint8)
    source.gather([4, 2], flight, range(1, 3))
    target = HostMemory(np.full(geometry.end, 255, np.uint8), geometry)
    target.scatter([0, 7], flight, range(1, 3))
    for theirs, ours in ((4, 0), (2, 7)):
        assert (target.page(0, ours) == 255).all()
        for layer in (1, 2):
            assert (target.page(layer, ours) == source.page(layer, theirs)).all()


@pytest.mark.parametrize("layers", [range(2, 4), range(-1, 2), range(2, 2), range(0, 3, 2)])
def test_layers_that_are_not_there_are_refused(layers: range) -> None:
    _, host = memory(LAYER_OUTER)
    with pytest.raises(ValueError, match="layers"):
        host.gather([1], np.zeros(2 * PAGE, np.uint8), layers)


@pytest.mark.parametrize(
    "broken",
    [
        Geometry(0, 8, PAGE, 8 * PAGE, PAGE),
        Geometry(3, 8, PAGE, 8 * PAGE, PAGE - 1),
        Geometry(3, 8, PAGE, 7 * PAGE, PAGE),
        Geometry(3, 8, PAGE, PAGE, 2 * PAGE),
        Geometry(3, 9, PAGE, 9 * PAGE, PAGE),
    ],
)
def test_a_geometry_that_overlaps_or_overruns_is_refused(broken: Geometry) -> None:
    with pytest.raises(ValueError, match=r"geometry|overlap|byte"):
        HostMemory(np.zeros(LAYER_OUTER.end, np.uint8), broken)


def test_blocks_outside_are_refused_and_nothing_is_copied() -> None:
    _, host = memory(LAYER_OUTER)
    before = host.page(0, 7).copy()
    flight = np.zeros(2 * LAYER_OUTER.block_bytes, np.uint8)
    for blocks in ([7, 8], [-1, 0], [8, 9]):
        with pytest.raises(ValueError, match="outside"):
            host.gather(blocks, flight)
        with pytest.raises(ValueError, match="outside"):
            host.scatter(blocks, flight)
    assert (host.page(0, 7) == before).all()


def test_a_buffer_of_another_size_and_a_block_twice_are_refused() -> None:
    _, host = memory(LAYER_OUTER)
    with pytest.raises(ValueError, match="expected"):
        host.gather([1], np.zeros(LAYER_OUTER.block_bytes - 1, np.uint8))
    with pytest.raises(ValueError, match="once"):
        host.scatter([1, 1], np.zeros(2 * LAYER_OUTER.block_bytes, np.uint8))


def test_memory_that_numpy_would_copy_is_refused() -> None:
    whole = np.zeros((LAYER_OUTER.end, 2), np.uint8)
    with pytest.raises(ValueError, match="contiguous"):
        HostMemory(whole[:, 0], LAYER_OUTER)
    fixed = np.zeros(LAYER_OUTER.end, np.uint8)
    fixed.flags.writeable = False
    with pytest.raises(ValueError, match="writable"):
        HostMemory(fixed, LAYER_OUTER)
