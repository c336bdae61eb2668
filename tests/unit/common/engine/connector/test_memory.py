"""vLLM's KV tensors as pages: the layouts that are taken, the ones refused, and both copies."""

import numpy as np
import pytest
import torch

from common.engine.connector.memory import DeviceMemory, kv_memory
from common.errors import BatonError
from common.kv.compression.fp8 import PageFormat
from common.kv.layout import HostMemory

LAYERS, BLOCKS, HEADS, TOKENS, WIDTH = 3, 7, 2, 4, 6
PAGE_BYTES = HEADS * TOKENS * WIDTH * 4


def caches(order: str) -> dict[str, torch.Tensor]:
    """Logical [blocks, heads, tokens, width] per layer over one allocation in the given order."""
    sizes = {"L": LAYERS, "B": BLOCKS, "H": HEADS, "N": TOKENS, "C": WIDTH}
    whole = torch.arange(LAYERS * BLOCKS * HEADS * TOKENS * WIDTH, dtype=torch.float32)
    shaped = whole.reshape([sizes[axis] for axis in order])
    logical = shaped.permute([order.index(axis) for axis in "LBHNC"])
    return {f"layer{i}": logical[i] for i in range(LAYERS)}


@pytest.mark.parametrize("order", ["LBHNC", "LBNHC", "BLHNC"])
def test_blocks_move_whole_in_every_paged_layout(order: str) -> None:
    source, target = caches(order), caches(order)
    for tensor in target.values():
        tensor.zero_()
    data = np.empty(3 * LAYERS * PAGE_BYTES, np.uint8)
    kv_memory(source, BLOCKS).gather([5, 0, 1], data)
    kv_memory(target, BLOCKS).scatter([2, 6, 3], data)
    for name, tensor in target.items():
        for to, came_from in ((2, 5), (6, 0), (3, 1)):
            assert torch.equal(tensor[to], source[name][came_from])
        assert not tensor[[0, 1, 4, 5]].any()


@pytest.mark.parametrize("order", ["LBHNC", "LBNHC", "BLHNC"])
def test_device_and_host_copies_are_the_same_bytes(order: str) -> None:
    """The device path is torch's own indexing, so it runs on any device, this one too."""
    host = kv_memory(caches(order), BLOCKS)
    assert isinstance(host, HostMemory)
    tensors = caches(order)
    storage = next(iter(tensors.values())).untyped_storage()
    device = DeviceMemory(torch.empty(0, dtype=torch.uint8).set_(storage), host.geometry)
    by_host = np.empty(2 * LAYERS * PAGE_BYTES, np.uint8)
    by_device = np.empty_like(by_host)
    host.gather([6, 2], by_host)
    device.gather([6, 2], by_device)
    assert np.array_equal(by_host, by_device)
    some = np.empty(2 * PAGE_BYTES, np.uint8)
    device.gather([6, 2], some, range(1, 2))
    assert np.array_equal(some, by_host[2 * PAGE_BYTES : 4 * PAGE_BYTES])
    device.scatter([0, 4], by_device)
    again = np.empty_like(by_host)
    device.gather([0, 4], again)
    assert np.array_equal(again, by_host)


@pytest.mark.parametrize(
    ("order", "page_format"),
    [
        ("LBHNC", PageFormat("float32", (HEADS, 2, TOKENS * WIDTH // 2), (2,))),
        ("LBNHC", PageFormat("float32", (TOKENS, HEADS, 2, WIDTH // 2), (0, 3))),
    ],
)
def test_what_a_page_holds_is_known(order: str, page_format: PageFormat) -> None:
    assert kv_memory(caches(order), BLOCKS).geometry.page_format == page_format


def test_a_page_of_other_elements_is_not_compressed() -> None:
    integers = {name: tensor.to(torch.int8) for name, tensor in caches("LBHNC").items()}
    whole = torch.stack(list(integers.values()))
    layers = {f"layer{i}": whole[i] for i in range(LAYERS)}
    assert kv_memory(layers, BLOCKS).geometry.page_format is None
    assert kv_memory(layers, BLOCKS).geometry.fp8_page_bytes == 0


def test_device_copies_refuse_what_would_read_or_write_elsewhere() -> None:
    tensors = caches("LBHNC")
    storage = next(iter(tensors.values())).untyped_storage()
    geometry = kv_memory(tensors, BLOCKS).geometry
    memory = DeviceMemory(torch.empty(0, dtype=torch.uint8).set_(storage), geometry)
    data = np.zeros(2 * LAYERS * PAGE_BYTES, np.uint8)
    with pytest.raises(ValueError, match="outside"):
        memory.gather([0, BLOCKS], data)
    with pytest.raises(ValueError, match="once only"):
        memory.scatter([1, 1], data)
    with pytest.raises(ValueError, match="contiguous bytes"):
        memory.gather([0], data)


def test_layouts_that_cannot_be_handed_over_are_refused_with_what_was_found() -> None:
    with pytest.raises(BatonError, match="one allocation; found 3 layers"):
        kv_memory({f"l{i}": torch.zeros(BLOCKS, 2, 4) for i in range(3)}, BLOCKS)
    with pytest.raises(BatonError, match="cannot be handed over"):
        kv_memory(caches("LHBNC"), BLOCKS)
    with pytest.raises(BatonError, match="cannot be handed over"):
        kv_memory(caches("LBHNC"), BLOCKS + 1)
