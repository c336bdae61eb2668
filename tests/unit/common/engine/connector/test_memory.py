"""vLLM's KV cache as pages: the layouts that are taken, the ones refused, and both copies."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from common.blocks import Kept, KvGroup
from common.engine.connector.memory import (
    KvCache,
    block_bytes,
    kv_groups,
    kv_memory,
    layers_of_pages,
)
from common.errors import BatonError
from common.kv.compression.fp8 import PageFormat
from common.kv.device.memory import CopyQueues, DeviceMemory
from common.kv.device.pages import CardPages
from common.kv.layout import HostMemory, KvMemory, SeveralRegions
from tests.unit.common.kv.device.late_card import LateCard

LAYERS, BLOCKS, HEADS, TOKENS, WIDTH = 3, 7, 2, 4, 6
PAGE_BYTES = HEADS * TOKENS * WIDTH * 4
Layers = dict[str, Any]


class Cache:
    """A KV cache as vLLM allocates it for these groups of layers, by name, in a layout."""

    def __init__(self, order: str, *groups: Layers, device: str = "cpu") -> None:
        from vllm.v1.core.kv_cache_utils import get_kv_cache_config_from_groups
        from vllm.v1.kv_cache_interface import KVCacheGroupSpec, UniformTypeKVCacheSpecs
        from vllm.v1.kv_cache_layout import KVCacheLayout
        from vllm.v1.worker.utils import allocate_kv_cache

        made = []
        for layers in groups or (plain(),):
            specs = list(layers.values())
            one = specs[0]
            if any(spec != one for spec in specs):
                one = UniformTypeKVCacheSpecs(block_size=TOKENS, kv_cache_specs=layers)
            made.append(KVCacheGroupSpec(list(layers), one))
        self.layout = KVCacheLayout[order]
        self.config = get_kv_cache_config_from_groups(_settings(self.layout), made, 1 << 20)
        self.caches: dict[str, KvCache] = allocate_kv_cache(
            self.config, torch.device(device), self.layout
        )

    def memory(self) -> KvMemory:
        return kv_memory(self.caches, self.config, self.layout)

    def fill(self) -> None:
        """Every byte differs from its neighbours."""
        flat = self.flat()
        flat[:] = torch.arange(len(flat)) * 31 % 251

    def flat(self) -> torch.Tensor:
        cache = next(iter(self.caches.values()))
        tensor = cache if isinstance(cache, torch.Tensor) else cache[0]
        return torch.empty(0, dtype=torch.uint8).set_(tensor.untyped_storage())

    def block(self, name: str, block: int) -> torch.Tensor:
        cache = self.caches[name]
        assert isinstance(cache, torch.Tensor)
        return cache[block]


def _settings(layout: Any) -> Any:
    """As much of a `VllmConfig` as vLLM reads for a layout."""
    cache = SimpleNamespace(
        get_resolved_kv_cache_layout=lambda: layout,
        num_gpu_blocks_override=BLOCKS,
        prefix_cache_retention_interval=None,
    )
    attention = SimpleNamespace(hisparse_config=None)
    return SimpleNamespace(cache_config=cache, attention_config=attention)


def plain(
    names: str = "abc", width: int = WIDTH, kind: str = "FullAttentionSpec", **more: object
) -> Layers:
    from vllm.v1 import kv_cache_interface

    spec = getattr(kv_cache_interface, kind)(
        block_size=TOKENS,
        num_kv_heads=HEADS,
        head_size=width // 2,
        dtype=more.pop("dtype", torch.float32),
        **more,
    )
    return dict.fromkeys(names, spec)


def state(names: str) -> Layers:
    """A convolution's and a state space's state, padded to the page of `plain()`."""
    from vllm.v1.kv_cache_interface import MambaSpec

    spec = MambaSpec(
        block_size=4096,
        shapes=((3, 4), (5, 6)),
        dtypes=(torch.float32, torch.float32),
        page_size_padded=PAGE_BYTES,
    )
    return dict.fromkeys(names, spec)


@pytest.mark.parametrize("order", ["LBHNC", "LBNHC", "BLHNC", "BLNHC"])
def test_blocks_move_whole_in_every_paged_layout(order: str) -> None:
    source, target = Cache(order), Cache(order)
    source.fill()
    data = np.empty(3 * LAYERS * PAGE_BYTES, np.uint8)
    assert block_bytes(source.config) == LAYERS * PAGE_BYTES
    source.memory().gather([5, 0, 1], data)
    target.memory().scatter([2, 6, 3], data)
    for name in source.caches:
        for to, came_from in ((2, 5), (6, 0), (3, 1)):
            assert torch.equal(
                target.block(name, to).view(torch.int32),
                source.block(name, came_from).view(torch.int32),
            )
        for untouched in (0, 1, 4, 5):
            assert not target.block(name, untouched).any()


@pytest.mark.parametrize("order", ["LBHNC", "LBNHC", "BLHNC"])
def test_device_and_host_copies_are_the_same_bytes(order: str) -> None:
    """Of what does not fit the kernel: torch's own indexing, which runs on any device."""
    cache = Cache(order)
    cache.fill()
    host = cache.memory()
    assert isinstance(host, HostMemory)
    device = DeviceMemory(CopyQueues(LateCard(), cache.flat()), CardPages(host.geometry))
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
    assert Cache(order).memory().geometry.page_format == page_format
    window = plain("de", kind="SlidingWindowSpec", sliding_window=8)
    assert Cache(order, plain(), window).memory().geometry.page_format == page_format


@pytest.mark.parametrize(
    "groups",
    [
        (plain(dtype=torch.int8),),
        (plain(), state("de")),
        (state("ab"),),
        ({**plain("ab"), **plain("c", 2 * WIDTH)},),
    ],
)
def test_pages_without_k_and_v_of_one_shape_are_not_compressed(groups: tuple[Layers, ...]) -> None:
    geometry = Cache("LBHNC", *groups).memory().geometry
    assert geometry.page_format is None
    assert geometry.fp8_page_bytes == 0


def test_the_groups_of_a_model_lie_over_each_other() -> None:
    """A block has the pages of the largest group; the others use some of them."""
    window = plain("de", kind="SlidingWindowSpec", sliding_window=8)
    cache = Cache("LBHNC", plain(), state("fgh"), window)
    geometry = cache.memory().geometry
    assert (geometry.layers, geometry.page_bytes) == (LAYERS, PAGE_BYTES)
    assert kv_groups(cache.config, 100) == (
        KvGroup(TOKENS),
        KvGroup(4096, Kept.STATE),
        KvGroup(TOKENS, Kept.WINDOW, 8, 100),
    )
    pages = layers_of_pages(cache.config, geometry.layers)
    assert pages == [{"a", "d", "f"}, {"b", "e", "g"}, {"c", "h"}]
    cache.fill()
    data = np.empty(geometry.block_bytes, np.uint8)
    cache.memory().gather([4], data)
    for at, name in enumerate("de"):
        page = data[at * PAGE_BYTES : (at + 1) * PAGE_BYTES]
        assert np.array_equal(page, cache.block(name, 4).contiguous().view(torch.uint8).flatten())


@pytest.mark.parametrize("order", ["LBHNC", "BLHNC"])
def test_layers_that_differ_in_size_move_together(order: str) -> None:
    groups = ({**plain("ab"), **plain("c", 2 * WIDTH)},)
    source, target = Cache(order, *groups), Cache(order, *groups)
    memory = source.memory()
    assert isinstance(memory, SeveralRegions)
    assert (memory.geometry.layers, memory.geometry.block_bytes) == (1, 4 * PAGE_BYTES)
    assert block_bytes(source.config) == 4 * PAGE_BYTES
    assert layers_of_pages(source.config, 1) == [{"a", "b", "c"}]
    source.fill()
    data = np.empty(2 * memory.geometry.block_bytes, np.uint8)
    given = memory.gather([5, 1], data)
    assert target.memory().scatter([0, 6], data) == given
    for name in "abc":
        for to, came_from in ((0, 5), (6, 1)):
            assert torch.equal(
                target.block(name, to).view(torch.int32),
                source.block(name, came_from).view(torch.int32),
            )
        assert not target.block(name, 1).any()
    with pytest.raises(ValueError, match="contiguous bytes"):
        memory.gather([1], data)


def test_groups_whose_pages_differ_in_size_move_as_whole_blocks() -> None:
    window = plain("cd", 2 * WIDTH, "SlidingWindowSpec", sliding_window=8)
    cache = Cache("BLHNC", plain("ab"), window)
    geometry = cache.memory().geometry
    assert (geometry.layers, geometry.block_bytes) == (1, 4 * PAGE_BYTES)
    cache.fill()
    data = np.empty(geometry.block_bytes, np.uint8)
    cache.memory().gather([3], data)
    at = 3 * geometry.block_bytes
    assert np.array_equal(data, cache.flat()[at : at + geometry.block_bytes])


def test_groups_whose_pages_differ_in_size_need_blocks_in_one_run() -> None:
    window = plain("cd", 2 * WIDTH, "SlidingWindowSpec", sliding_window=8)
    cache = Cache("BLHNC", plain("ab"), window)
    layers_first = Cache("LBHNC").layout
    with pytest.raises(BatonError, match="set VLLM_KV_CACHE_LAYOUT=BLNHC"):
        kv_memory(cache.caches, cache.config, layers_first)


def test_memory_of_one_cache_on_a_device_shares_its_queues(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Torch's device without memory stands in for a card."""
    from common.kv.device import card

    monkeypatch.setattr(card, "CudaCard", lambda _: LateCard())
    cache = Cache("LBHNC", device="meta")
    one, other = cache.memory(), cache.memory()
    both = kv_memory(cache.caches, cache.config, cache.layout, beside=one)
    assert isinstance(one, DeviceMemory)
    assert isinstance(other, DeviceMemory)
    assert isinstance(both, DeviceMemory)
    assert both.queues is one.queues
    assert other.queues is not one.queues


def test_device_copies_refuse_what_would_read_or_write_elsewhere() -> None:
    cache = Cache("LBHNC")
    memory = DeviceMemory(CopyQueues(LateCard(), cache.flat()), CardPages(cache.memory().geometry))
    data = np.zeros(2 * LAYERS * PAGE_BYTES, np.uint8)
    with pytest.raises(ValueError, match="outside"):
        memory.gather([0, BLOCKS], data)
    with pytest.raises(ValueError, match="once only"):
        memory.scatter([1, 1], data)
    with pytest.raises(ValueError, match="contiguous bytes"):
        memory.gather([0], data)


@pytest.mark.parametrize("order", ["LHBNC", "BHLNC"])
def test_a_layout_that_scatters_a_page_is_refused_with_the_way_out(order: str) -> None:
    with pytest.raises(BatonError, match="set VLLM_KV_CACHE_LAYOUT=LBNHC"):
        Cache(order).memory()
