"""Whether this engine's KV has a canonical form, and its memory in it.

Theory of operation: the order of items inside a page is the attention kernel's alone, and vLLM
promises nobody what it is. So it is claimed here and tried when the engine starts
(`page_trial.py`). If the claim is wrong, this engine has no such form, and hands KV over to workers
of its own layout only. A drafter's layers have no such form.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple, get_args

import structlog
import torch

from common.blocks import CANONICAL_TOKENS, ELEMENT_BYTES, Element, Kept, KvGroup
from common.engine.connector.memory import ELEMENTS
from common.engine.connector.page_trial import ClaimedPage, is_as_claimed, isa_of
from common.engine.vllm.supported_models import holds_k_and_v, layer_spec
from common.engine.vllm_on_cpu import AMX
from common.kv.canonical import CanonicalForm, CanonicalMemory, HeadMajorPage
from common.kv.device.pages import CardPages, TokenPage
from common.kv.layout import HostMemory, KvMemory, SeveralRegions
from common.kv.messages import NO_FORM, KvForm
from common.telemetry.log import Logger

if TYPE_CHECKING:
    from vllm.config import VllmConfig
    from vllm.v1.kv_cache_interface import KVCacheConfig

    from common.engine.connector.memory import KvCache
    from common.engine.connector.setup import Setup

BACKEND = "CPU_ATTN"


class CanonicalForms(NamedTuple):
    """An engine's memory in the canonical form."""

    element: Element
    """Of the engine's items."""
    by_wire: dict[str, CanonicalForm]
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
    if claimed is not None:
        name = config.kv_cache_tensors[0].layers[0]
        cache = kv_caches[name]
        assert isinstance(cache, torch.Tensor)
        why = _fault(made, claimed, name, cache)
        if not why:
            return _forms(memory, claimed, converts=converts)
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


def _forms(memory: KvMemory, claimed: ClaimedPage, *, converts: bool) -> CanonicalForms:
    page, element = claimed.page, claimed.element
    forms: dict[str, CanonicalForm] = {}
    if isinstance(page, HeadMajorPage):
        assert isinstance(memory, HostMemory)
        forms[""] = CanonicalMemory(memory, page)
        others = [other for other in get_args(Element) if converts and other != element]
        for other in others:
            if ELEMENT_BYTES[other] <= ELEMENT_BYTES[element]:
                forms[other] = CanonicalMemory(memory, page, (element, other))
    else:
        # Not at the top: who has no card needs no Triton, which takes a second.
        from common.kv.device.memory import CanonicalDeviceMemory, DeviceMemory

        assert isinstance(memory, DeviceMemory)
        forms[""] = CanonicalDeviceMemory(memory, page)
    if converts:
        forms[element] = forms[""]
    return CanonicalForms(element, forms)


def _claimed_page(
    made: VllmConfig,
    config: KVCacheConfig,
    kv_caches: dict[str, KvCache],
    groups: Sequence[KvGroup],
    memory: KvMemory,
) -> tuple[ClaimedPage | None, str]:
    """What a page of every layer is, or None and why that is not known."""
    names = [name for tensor in config.kv_cache_tensors for name in tensor.layers]
    in_host = isinstance(memory, HostMemory)
    if why := _fault_of_kind(config, names, groups, memory):
        return None, why
    pages = {_page_of(kv_caches[name], in_host=in_host) for name in names}
    claimed = pages.pop()
    if pages or claimed is None or claimed.page.tokens != groups[0].block_tokens:
        return None, "its layers differ, or are of an unknown form or element type"
    ranks, page = made.parallel_config.tensor_parallel_size, claimed.page
    if page.heads * ranks != made.model_config.get_total_num_kv_heads():
        return None, f"its heads are not shared out evenly over {ranks} ranks"
    if not page.canonical_blocks:
        return None, f"blocks of {page.tokens} tokens are not multiples of {CANONICAL_TOKENS}"
    if isinstance(page, TokenPage) and not CardPages(memory.geometry, page).fits_kernel:
        return None, f"heads of {claimed.items} items do not fit the kernel that copies on a card"
    if why := _fault_of_attention(made, names, in_host=in_host):
        return None, why
    if isinstance(page, HeadMajorPage):
        claimed = claimed._replace(page=replace(page, paired=isa_of(made, page) == AMX))
    return claimed, ""


def _fault_of_kind(
    config: KVCacheConfig, names: Sequence[str], groups: Sequence[KvGroup], memory: KvMemory
) -> str:
    """Why KV of this kind has no canonical form; empty if it may have one."""
    if isinstance(memory, SeveralRegions):
        return "its layers differ in size"
    if not isinstance(memory, HostMemory) and memory.device is None:
        return "its pages do not fit the kernel that copies on a card"
    if len(groups) != 1 or groups[0].kept is not Kept.ALL:
        return "some layers keep a part of the tokens, or a state"
    if not all(holds_k_and_v(layer_spec(config, name)) for name in names):
        return "some layers hold something else than K and V"
    return ""


def _fault_of_attention(made: VllmConfig, names: Sequence[str], *, in_host: bool) -> str:
    """Why it is not known how the attention of these layers lays out a page; empty if it is."""
    backends = {_backend_of(made, name) for name in names}
    if in_host and backends != {BACKEND}:
        return f"its attention is not that of {BACKEND}"
    differ = len(backends) > 1
    return f"its layers differ in their attention: {', '.join(sorted(backends))}" if differ else ""


def _page_of(layer: KvCache, *, in_host: bool) -> ClaimedPage | None:
    """Of `[blocks, heads, tokens, 2 x items]`, contiguous inside a block."""
    if not isinstance(layer, torch.Tensor) or layer.dim() != 4 or layer.dtype not in ELEMENTS:
        return None
    _, heads, tokens, width = layer.shape
    steps, size = layer.stride()[1:], layer.dtype.itemsize
    heads_first = steps == (tokens * width, width, 1)
    if width % 2 or not (heads_first or steps == (width, heads * width, 1)):
        return None
    page: HeadMajorPage | TokenPage | None = None
    if not in_host:
        page = TokenPage(heads, tokens, width * size, tokens_first=not heads_first)
    elif heads_first:
        page = HeadMajorPage(heads, tokens, width // 2, size)
    return ClaimedPage(page, ELEMENTS[layer.dtype], width // 2) if page is not None else None


def _fault(made: VllmConfig, claimed: ClaimedPage, name: str, cache: torch.Tensor) -> str:
    """Why this engine does not lay a page out as claimed, as its layer of this name shows; empty if
    it does."""
    layer = made.compilation_config.static_forward_context[name]
    try:
        if is_as_claimed(made, claimed, cache, layer):
            return ""
    except Exception as error:  # noqa: BLE001 (vLLM's, which promises nothing)
        return f"its kernels cannot be tried: {error!r}"
    return f"its kernels do not lay it out as claimed: {claimed}"


def _backend_of(made: VllmConfig, name: str) -> str:
    """The attention of this layer."""
    layer = made.compilation_config.static_forward_context.get(name)
    backend = getattr(layer, "attn_backend", None)
    return str(backend.get_name()) if backend is not None else "a kind unknown"
