"""vLLM's KV cache as paged memory, out of which and into which the KV layer copies whole blocks.

Theory of operation: vLLM keeps all layers in one allocation and says in its `KVCacheConfig` where
each lies. A page, which is one block of one layer, is a contiguous run of bytes, whatever is inside
it: K and V in some order of heads and tokens, a latent vector, or the state of a state layer. Host
memory is viewed by numpy. `common/kv/device` copies what is on a card.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, TypeAlias

import numpy as np
import torch

from common.blocks import Element, KvGroup
from common.engine.vllm.supported_models import holds_k_and_v, kv_group, layer_spec
from common.errors import BatonError, Code
from common.kv.compression.fp8 import PageFormat
from common.kv.device.pages import CardPages
from common.kv.layout import Geometry, HostMemory, KvMemory, Mark, SeveralRegions

if TYPE_CHECKING:
    from vllm.v1.kv_cache_interface import KVCacheConfig, KVCacheSpec
    from vllm.v1.kv_cache_layout import KVCacheLayout

KvCache: TypeAlias = torch.Tensor | list[torch.Tensor]

ELEMENTS: dict[torch.dtype, Element] = {
    torch.float32: "float32",
    torch.bfloat16: "bfloat16",
    torch.float16: "float16",
}


def kv_memory(
    kv_caches: dict[str, KvCache],
    config: KVCacheConfig,
    layout: KVCacheLayout,
    beside: KvMemory | None = None,
) -> KvMemory:
    """Views vLLM's KV cache. `beside`: memory of the same one, with whose copies on a card those of
    this are ordered. Raises BatonError(CONFIG_INVALID) if a page is not one contiguous run of
    bytes."""
    if not layout.is_block_compact:
        raise BatonError(
            Code.CONFIG_INVALID,
            f"KV in the layout {layout.name} cannot be handed over, because a block of a layer is "
            "not contiguous; set VLLM_KV_CACHE_LAYOUT=LBNHC",
        )
    first = _tensor_of(next(iter(kv_caches.values())))
    flat = torch.empty(0, dtype=torch.uint8, device=first.device).set_(first.untyped_storage())
    geometries = _geometries(config, layout, _common_format(kv_caches, config))
    memories: list[KvMemory]
    if first.device.type == "cpu":
        base: np.ndarray[tuple[int], np.dtype[np.uint8]] = flat.numpy()
        memories = [HostMemory(base, geometry) for geometry in geometries]
    else:
        # Not at the top: who has no card needs no Triton, which takes a second.
        from common.kv.device.card import CudaCard
        from common.kv.device.memory import CopyQueues, DeviceMemory

        shared = beside.queues if isinstance(beside, DeviceMemory) else None
        queues = shared or CopyQueues(CudaCard(first.device), flat)
        memories = [DeviceMemory(queues, CardPages(geometry)) for geometry in geometries]
    return memories[0] if len(memories) == 1 else SeveralRegions(memories)


def kv_groups(config: KVCacheConfig, in_flight: int) -> tuple[KvGroup, ...]:
    """`in_flight`: as in `kv_group`. Raises ConfigError for a group whose blocks are not understood
    here."""
    return tuple(kv_group(group.kv_cache_spec, in_flight) for group in config.kv_cache_groups)


def block_bytes(config: KVCacheConfig) -> int:
    """Bytes of one block of a model with one KV cache group, over all its layers."""
    return sum(
        layer_spec(config, tensor.layers[0]).page_size_bytes * len(tensor.layers)
        for tensor in config.kv_cache_tensors
    )


def marker(kv_caches: dict[str, KvCache]) -> Callable[[], Mark | None]:
    """Returns a function that marks what the calling thread has given to the card of this KV cache
    so far; in host memory it returns None."""
    device = _tensor_of(next(iter(kv_caches.values()))).device
    if device.type != "cuda":
        return lambda: None
    # Not at the top: as above.
    from common.kv.device.card import CudaCard

    return CudaCard(device).mark


def layers_of_pages(config: KVCacheConfig, pages: int) -> list[set[str]]:
    """The layers whose KV lies in each of the `pages` pages of a block, in the order of memory:
    one for each KV cache group."""
    names: list[set[str]] = [set() for _ in range(pages)]
    for tensor in config.kv_cache_tensors:
        for at, name in enumerate(tensor.layers):
            names[min(at, pages - 1)].add(name)
    return names


def _tensor_of(cache: KvCache) -> torch.Tensor:
    """A state layer has several tensors."""
    return cache if isinstance(cache, torch.Tensor) else cache[0]


def _geometries(
    config: KVCacheConfig, layout: KVCacheLayout, page_format: PageFormat | None
) -> list[Geometry]:
    """The regions of the allocation that hold a block's pages. The pages of all groups lie over
    each other, because a block belongs to one group at a time. Where the pages of groups differ in
    size, a block is one run of bytes that is moved whole."""
    places: dict[tuple[int, int, int, int], int] = {}
    for tensor in config.kv_cache_tensors:
        page = layer_spec(config, tensor.layers[0]).page_size_bytes
        place = (tensor.offset, tensor.layer_stride, tensor.block_stride, page)
        places[place] = max(places.get(place, 0), len(tensor.layers))
    if len(places) > 1 and len(config.kv_cache_groups) > 1:
        if not layout.is_block_outermost:
            raise BatonError(
                Code.CONFIG_INVALID,
                f"KV of groups whose pages differ in size cannot be handed over in the layout "
                f"{layout.name}, where a block is not one run of bytes; set "
                "VLLM_KV_CACHE_LAYOUT=BLNHC",
            )
        block_stride = config.kv_cache_tensors[0].block_stride
        places = {(0, block_stride, block_stride, block_stride): 1}
    formatted = page_format if len(places) == 1 else None
    return [
        Geometry(
            layers=layers,
            blocks=config.num_blocks,
            page_bytes=page,
            layer_stride=layer_stride,
            block_stride=block_stride,
            offset=offset,
            page_format=formatted if formatted and formatted.page_bytes == page else None,
        )
        for (offset, layer_stride, block_stride, page), layers in places.items()
    ]


def _common_format(kv_caches: dict[str, KvCache], config: KVCacheConfig) -> PageFormat | None:
    """The format of every page; None if pages differ or hold something else than K and V."""
    formats = {
        _page_format(kv_caches[name], layer_spec(config, name))
        for tensor in config.kv_cache_tensors
        for name in tensor.layers
    }
    return formats.pop() if len(formats) == 1 else None


def _page_format(layer: KvCache, spec: KVCacheSpec) -> PageFormat | None:
    """The format inside a page of `[blocks, heads, tokens, 2 x head_dim]`. On CPU vLLM keeps all K
    of a head before its V; elsewhere K is before V in each token, with tokens and heads in either
    order. None for other shapes and element types, such as fp8, and for pages without K and V."""
    if not isinstance(layer, torch.Tensor) or not holds_k_and_v(spec):
        return None
    element = ELEMENTS.get(layer.dtype)
    if element is None or layer.dim() != 4 or layer.shape[3] % 2:
        return None
    _, heads, tokens, width = layer.shape
    if layer.device.type == "cpu" and layer.stride(1) >= layer.stride(2):
        return PageFormat(element, (heads, 2, tokens * width // 2), (2,))
    if layer.stride(1) >= layer.stride(2):
        return PageFormat(element, (heads, tokens, 2, width // 2), (1, 3))
    return PageFormat(element, (tokens, heads, 2, width // 2), (0, 3))
