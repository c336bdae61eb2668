"""Trying how an engine's kernels lay out a page.

Theory of operation: known K and V are written to a block of its own by the operation with which the
engine writes them, and read back in the canonical form.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch

from common.blocks import CANONICAL_TOKENS, Element
from common.engine.connector.memory import ELEMENTS
from common.engine.vllm_on_cpu import page_isa
from common.kv.canonical import CanonicalMemory, HeadMajorPage
from common.kv.device.pages import CardPages, TokenPage
from common.kv.layout import Geometry, HostMemory

if TYPE_CHECKING:
    from vllm.config import VllmConfig


class ClaimedPage(NamedTuple):
    """What a page is said to be: of a CPU engine, or of one on a card."""

    page: HeadMajorPage | TokenPage
    element: Element
    items: int
    """Of the K of one head and token; V has as many."""


def is_as_claimed(made: VllmConfig, claimed: ClaimedPage, cache: torch.Tensor, layer: Any) -> bool:
    """Whether vLLM's own operation, as this engine uses it, writes K and V to where the canonical
    form reads them from. `cache`: of this attention layer. Raises what the operation raises."""
    dtype = made.model_config.dtype
    if ELEMENTS.get(dtype) != claimed.element:
        return False
    page, items = claimed.page, claimed.items
    shape = 2, page.tokens, page.heads, items
    draws = np.random.default_rng(0).standard_normal(shape, np.float32)
    keys, values = torch.from_numpy(draws).to(cache.device, dtype).unbind()
    if isinstance(page, HeadMajorPage):
        found = _written_by_cpu(made, page, keys, values)
    else:
        found = _written_on_card(page, keys, values, layer)
    expected = torch.stack((keys, values), dim=2)  # [token][head][K|V][item]
    in_blocks = expected.view(page.canonical_blocks, CANONICAL_TOKENS, page.heads, 2, items)
    ordered = in_blocks.transpose(1, 2).contiguous().view(torch.uint8).flatten()
    return bool(torch.equal(found, ordered))


def _written_by_cpu(
    made: VllmConfig, page: HeadMajorPage, keys: torch.Tensor, values: torch.Tensor
) -> torch.Tensor:
    from vllm import _custom_ops

    heads, tokens, size = page.heads, page.tokens, page.page_bytes
    block = torch.zeros(1, heads, 2 * tokens, page.items, dtype=keys.dtype)
    key_part, value_part = block.chunk(2, dim=2)
    slots = torch.arange(tokens, dtype=torch.int64)
    parts = keys.contiguous(), values.contiguous(), key_part, value_part
    _custom_ops.cpu_attn_reshape_and_cache(*parts, slots, isa_of(made, page))
    base: np.ndarray[tuple[int], np.dtype[np.uint8]] = block.view(torch.uint8).flatten().numpy()
    found = np.empty(size, np.uint8)
    memory = CanonicalMemory(HostMemory(base, Geometry(1, 1, size, size, size)), page)
    memory.gather(range(page.canonical_blocks), found)
    return torch.from_numpy(found)


def _written_on_card(
    page: TokenPage, keys: torch.Tensor, values: torch.Tensor, layer: Any
) -> torch.Tensor:
    width, size = 2 * keys.shape[2], page.page_bytes
    if page.tokens_first:
        whole = keys.new_zeros(1, page.tokens, page.heads, width)
        block = whole.transpose(1, 2)
    else:
        block = whole = keys.new_zeros(1, page.heads, page.tokens, width)
    slots = torch.arange(page.tokens, dtype=torch.int64, device=keys.device)
    layer.impl.do_kv_cache_update(layer, keys, values, block, slots)
    pages = CardPages(Geometry(1, 1, size, size, size), page)
    return pages.view(whole.view(torch.uint8).flatten()).flatten()


def isa_of(made: VllmConfig, page: HeadMajorPage) -> str:
    """Of the kernels that write such pages."""
    kv_dtype = str(made.cache_config.cache_dtype)
    return page_isa(made.model_config.dtype, page.tokens, page.items, kv_dtype)
