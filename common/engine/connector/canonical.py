"""Whether this engine's KV has a canonical form, and its memory in it.

Theory of operation: the order of items inside a page is the attention kernel's alone, and vLLM
promises nobody what it is. So it is claimed here and tried when the engine starts: known K and V
are written to a block of their own by the operation with which the engine writes them, and read
back in the canonical form. If they differ, this engine has no such form, and hands KV over to
workers of its own layout only. A drafter's layers have no such form.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple, get_args

import numpy as np
import structlog
import torch

from common.blocks import CANONICAL_TOKENS, ELEMENT_BYTES, Element, Kept, KvGroup
from common.engine.connector.memory import ELEMENTS
from common.engine.vllm.supported_models import holds_k_and_v, layer_spec
from common.engine.vllm_on_cpu import AMX, page_isa
from common.kv.canonical import CanonicalMemory, HeadMajorPage
from common.kv.layout import Geometry, HostMemory, KvMemory
from common.kv.messages import NO_FORM, KvForm
from common.telemetry.log import Logger

if TYPE_CHECKING:
    from vllm.config import VllmConfig
    from vllm.v1.kv_cache_interface import KVCacheConfig

    from common.engine.connector.memory import KvCache
    from common.engine.connector.setup import Setup

BACKEND = "CPU_ATTN"


class ClaimedPage(NamedTuple):
    """What a page is said to be."""

    page: HeadMajorPage
    element: Element


class CanonicalForms(NamedTuple):
    """An engine's memory in the canonical form."""

    element: Element
    """Of the engine's items."""
    by_wire: dict[str, CanonicalMemory]
    """By `Ticket.element`: in its own element type, and in those of the same size or a smaller one
    to and from which it is converted."""


def canonical_forms(
    made: VllmConfig,
    config: KVCacheConfig,
    kv_caches: dict[str, KvCache],
    groups: Sequence[KvGroup],
    memory: KvMemory,
    *,
    converts: bool,
) -> CanonicalForms | None:
    """None, with a line in the log that says why, if this engine's KV has no canonical form.
    `converts`: to and from other element types, too."""
    claimed, why = _claimed_page(made, config, kv_caches, groups, memory)
    if claimed is not None and isinstance(memory, HostMemory):
        if is_as_claimed(made, claimed):
            return _forms(memory, claimed, converts=converts)
        why = f"its kernels do not lay it out as claimed: {claimed}"
    log: Logger = structlog.get_logger("baton")
    sentence = f"KV is handed over to and from workers of the same layout only: {why}"
    log.info("kv.one_layout", sentence=sentence)
    return None


def form_of(setup: Setup, canonical: CanonicalForms | None) -> KvForm:
    """What the worker says of it to others."""
    if canonical is None:
        return NO_FORM
    lossy = setup.lossy_meaning if setup.kv.may_lose else ""
    block_bytes = canonical.by_wire[""].geometry.block_bytes
    return KvForm(setup.meaning, lossy, canonical.element, block_bytes)


def _forms(memory: HostMemory, claimed: ClaimedPage, *, converts: bool) -> CanonicalForms:
    page, element = claimed
    forms: dict[str, CanonicalMemory] = {"": CanonicalMemory(memory, page)}
    if converts:
        forms[element] = forms[""]
        for other in get_args(Element):
            if other != element and ELEMENT_BYTES[other] <= ELEMENT_BYTES[element]:
                forms[other] = CanonicalMemory(memory, page, (element, other))
    return CanonicalForms(element, forms)


def _claimed_page(
    made: VllmConfig,
    config: KVCacheConfig,
    kv_caches: dict[str, KvCache],
    groups: Sequence[KvGroup],
    memory: KvMemory,
) -> tuple[ClaimedPage | None, str]:
    """What a page of every layer is, or None and why that is not known."""
    if not isinstance(memory, HostMemory):
        return None, "its memory is on a device, or its layers differ in size"
    if len(groups) != 1 or groups[0].kept is not Kept.ALL:
        return None, "some layers keep a part of the tokens, or a state"
    names = [name for tensor in config.kv_cache_tensors for name in tensor.layers]
    if not all(holds_k_and_v(layer_spec(config, name)) for name in names):
        return None, "some layers hold something else than K and V"
    pages = {_page_of(kv_caches[name]) for name in names}
    claimed = pages.pop()
    if pages or claimed is None or claimed.page.tokens != groups[0].block_tokens:
        return None, "its layers differ, or are of an unknown form or element type"
    ranks, model = made.parallel_config.tensor_parallel_size, made.model_config
    if claimed.page.heads * ranks != model.get_total_num_kv_heads():
        return None, f"its heads are not shared out evenly over {ranks} ranks"
    if not claimed.page.canonical_blocks:
        tokens = claimed.page.tokens
        return None, f"blocks of {tokens} tokens are not multiples of {CANONICAL_TOKENS}"
    if not _uses(made, names, BACKEND):
        return None, f"its attention is not that of {BACKEND}"
    page = replace(claimed.page, paired=_isa_of(made, claimed.page) == AMX)
    return claimed._replace(page=page), ""


def _page_of(layer: KvCache) -> ClaimedPage | None:
    """Of `[blocks, heads, tokens, 2 x items]`, contiguous inside a block."""
    if not isinstance(layer, torch.Tensor) or layer.dim() != 4 or layer.dtype not in ELEMENTS:
        return None
    _, heads, tokens, width = layer.shape
    if layer.stride()[1:] != (tokens * width, width, 1) or width % 2:
        return None
    page = HeadMajorPage(heads, tokens, width // 2, layer.dtype.itemsize)
    return ClaimedPage(page, ELEMENTS[layer.dtype])


def _uses(made: VllmConfig, names: Sequence[str], backend: str) -> bool:
    """Whether the attention of all these layers is of this backend."""
    layers = made.compilation_config.static_forward_context
    return all(name in layers and _backend_of(layers[name]) == backend for name in names)


def _isa_of(made: VllmConfig, page: HeadMajorPage) -> str:
    """Of the kernels that write such pages."""
    kv_dtype = str(made.cache_config.cache_dtype)
    return page_isa(made.model_config.dtype, page.tokens, page.items, kv_dtype)


def _backend_of(layer: torch.nn.Module) -> str:
    backend = getattr(layer, "attn_backend", None)
    return str(backend.get_name()) if backend is not None else ""


def is_as_claimed(made: VllmConfig, claimed: ClaimedPage) -> bool:
    """Whether vLLM's own operation, as this engine uses it, writes K and V to where the canonical
    form reads them from."""
    from vllm import _custom_ops

    page, element = claimed
    dtype = made.model_config.dtype
    if ELEMENTS.get(dtype) != element:
        return False
    heads, tokens, items = page.heads, page.tokens, page.items
    draws = np.random.default_rng(0).standard_normal((2, tokens, heads, items), np.float32)
    keys, values = torch.from_numpy(draws).to(dtype).unbind()
    block = torch.zeros(1, heads, 2 * tokens, items, dtype=dtype)
    key_part, value_part = block.chunk(2, dim=2)
    slots = torch.arange(tokens, dtype=torch.int64)
    parts = keys.contiguous(), values.contiguous(), key_part, value_part
    _custom_ops.cpu_attn_reshape_and_cache(*parts, slots, _isa_of(made, page))
    size = page.page_bytes
    base: np.ndarray[tuple[int], np.dtype[np.uint8]] = block.view(torch.uint8).flatten().numpy()
    found = np.empty(size, np.uint8)
    memory = CanonicalMemory(HostMemory(base, Geometry(1, 1, size, size, size)), page)
    memory.gather(range(page.canonical_blocks), found)
    expected = torch.stack((keys, values), dim=2)  # [token][head][K|V][item]
    in_blocks = expected.view(page.canonical_blocks, CANONICAL_TOKENS, heads, 2, items)
    ordered = in_blocks.transpose(1, 2).contiguous().view(torch.uint8).flatten()
    return bool(np.array_equal(found, ordered.numpy()))
