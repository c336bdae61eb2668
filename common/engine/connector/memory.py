"""vLLM's KV cache as paged memory, out of which and into which the KV layer copies whole blocks.

Theory of operation: all layers lie in one allocation. A page, which is one block of one layer, is a
contiguous run of bytes, whatever the order of heads and tokens inside it. The distance between
pages is constant from block to block and from layer to layer. Host memory is viewed by numpy. On a
device, gather and scatter are one indexed copy each on a stream of their own; both wait for it, so
that their result is complete. The engine's stream is waited for before that (`settler`).
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence

import numpy as np
import torch

from common.errors import BatonError, Code
from common.kv.checksum.definition import Bytes, Sum
from common.kv.checksum.kernel import sum_of
from common.kv.compression.fp8 import Element, PageFormat
from common.kv.layout import Geometry, HostMemory, KvMemory

_ELEMENTS: dict[torch.dtype, Element] = {
    torch.float32: "float32",
    torch.bfloat16: "bfloat16",
    torch.float16: "float16",
}


def kv_memory(kv_caches: dict[str, torch.Tensor], blocks: int) -> KvMemory:
    """Views vLLM's KV cache. Raises BatonError(CONFIG_INVALID) unless it is paged K and V of equal
    layers in one allocation."""
    first = next(iter(kv_caches.values()))
    geometry = _geometry(list(kv_caches.values()), blocks)
    flat = torch.empty(0, dtype=torch.uint8, device=first.device).set_(first.untyped_storage())
    if first.device.type != "cpu":
        return DeviceMemory(flat, geometry)
    base: np.ndarray[tuple[int], np.dtype[np.uint8]] = flat.numpy()
    return HostMemory(base, geometry)


def settler(kv_caches: dict[str, torch.Tensor]) -> Callable[[], None]:
    """Returns a function that waits until the forward pass launched by this thread has written its
    KV."""
    device = next(iter(kv_caches.values())).device
    if device.type != "cuda":
        return lambda: None
    return lambda: torch.cuda.current_stream(device).synchronize()


def layer_names(kv_caches: dict[str, torch.Tensor]) -> list[str]:
    """The layers in the order of memory, which is that of the KV layer. Empty on a device: there
    vLLM reports a layer as saved when its kernel is only launched, and blocks leave after the
    step."""
    if next(iter(kv_caches.values())).device.type != "cpu":
        return []
    return sorted(kv_caches, key=lambda name: kv_caches[name].data_ptr())


def _geometry(tensors: list[torch.Tensor], blocks: int) -> Geometry:
    first = tensors[0]
    storage = first.untyped_storage()
    page_items = first[0].numel()
    span = 1 + sum((n - 1) * step for n, step in zip(first.shape[1:], first.stride()[1:]))  # noqa: B905
    starts = sorted(tensor.data_ptr() - storage.data_ptr() for tensor in tensors)
    page_bytes = page_items * first.element_size()
    strides = {b - a for a, b in itertools.pairwise(starts)} or {page_bytes * blocks}
    alike = all(
        tensor.shape == first.shape
        and tensor.stride() == first.stride()
        and tensor.untyped_storage().data_ptr() == storage.data_ptr()
        for tensor in tensors
    )
    if not alike or first.shape[0] != blocks or span != page_items or len(strides) != 1:
        raise BatonError(
            Code.CONFIG_INVALID,
            "this KV cache layout cannot be handed over: supported are models with one kind of "
            f"full attention, all layers in one allocation; found {len(tensors)} layers of "
            f"{tuple(first.shape)}, strides {tuple(first.stride())}, on {first.device.type}, "
            f"distances {sorted(strides)[:4]}",
        )
    return Geometry(
        layers=len(tensors),
        blocks=blocks,
        page_bytes=page_bytes,
        layer_stride=strides.pop(),
        block_stride=first.stride(0) * first.element_size(),
        offset=starts[0],
        page_format=_page_format(first),
    )


def _page_format(layer: torch.Tensor) -> PageFormat | None:
    """The format inside a page of `[blocks, heads, tokens, 2 x head_dim]`. On CPU vLLM keeps all K
    of a head before its V; elsewhere K is before V in each token, with tokens and heads in either
    order. None for other shapes and element types, such as fp8."""
    element = _ELEMENTS.get(layer.dtype)
    if element is None or layer.dim() != 4 or layer.shape[3] % 2:
        return None
    _, heads, tokens, width = layer.shape
    if layer.device.type == "cpu" and layer.stride(1) >= layer.stride(2):
        return PageFormat(element, (heads, 2, tokens * width // 2), (2,))
    if layer.stride(1) >= layer.stride(2):
        return PageFormat(element, (heads, tokens, 2, width // 2), (1, 3))
    return PageFormat(element, (tokens, heads, 2, width // 2), (0, 3))


class DeviceMemory:
    """Paged KV on an accelerator. `flat` is a uint8 view of the whole allocation."""

    def __init__(self, flat: torch.Tensor, geometry: Geometry) -> None:
        geometry.check(flat.numel())
        self.geometry = geometry
        self._pages = flat.as_strided(
            (geometry.layers, geometry.blocks, geometry.page_bytes),
            (geometry.layer_stride, geometry.block_stride, 1),
            geometry.offset,
        )
        self._stream = torch.cuda.Stream(flat.device) if flat.device.type == "cuda" else None

    def gather(self, block_ids: Sequence[int], out: Bytes, layers: range | None = None) -> Sum:
        pages, staged = self._staged(block_ids, out, layers)
        with torch.cuda.stream(self._stream):
            staged.copy_(pages.index_select(1, self._index(block_ids)))
        self._wait()
        return sum_of(out)

    def scatter(self, block_ids: Sequence[int], data: Bytes, layers: range | None = None) -> Sum:
        if len(set(block_ids)) != len(block_ids):
            raise ValueError("a block may be written once only")
        pages, staged = self._staged(block_ids, data, layers)
        with torch.cuda.stream(self._stream):
            pages.index_copy_(1, self._index(block_ids), staged.to(pages.device))
        total = sum_of(data)
        self._wait()
        return total

    def _staged(
        self, block_ids: Sequence[int], data: Bytes, layers: range | None
    ) -> tuple[torch.Tensor, torch.Tensor]:
        shape = self.geometry.wire_shape(len(block_ids), data, layers)
        if not all(0 <= block < self.geometry.blocks for block in block_ids):
            raise ValueError(f"a block is outside 0..{self.geometry.blocks}")
        pages = self._pages if layers is None else self._pages[layers.start : layers.stop]
        return pages, torch.from_numpy(data.reshape(shape))

    def _index(self, block_ids: Sequence[int]) -> torch.Tensor:
        return torch.tensor(block_ids, dtype=torch.int64, device=self._pages.device)

    def _wait(self) -> None:
        if self._stream is not None:
            self._stream.synchronize()
