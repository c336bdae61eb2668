"""Which KV caches on a card have a canonical form, and that the attempt finds a wrong claim. vLLM
allocates them; the card is a late one, in host memory."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import structlog
import torch

from common.blocks import Kept, KvGroup
from common.config import KvConfig
from common.engine.connector import connector
from common.engine.connector.canonical import CanonicalForms, canonical_forms
from common.engine.connector.connector import BatonConnector
from common.kv.device import card
from common.kv.device.memory import CopyQueues, DeviceMemory
from common.kv.device.pages import CardPages
from common.kv.layout import SeveralRegions
from tests.unit.common.engine.connector.test_canonical import HEADS, engine, full
from tests.unit.common.engine.connector.test_memory import Cache, plain
from tests.unit.common.kv.device.late_card import LateCard

TOKENS = 32
OF_32 = KvGroup(TOKENS)


class Attention:
    """Writes as vLLM's attention on GPUs does: K before V in each token of each head."""

    def __init__(self, name: str = "FLASH_ATTN", *, values_first: bool = False) -> None:
        self.impl, self._values_first = self, values_first
        self.attn_backend = SimpleNamespace(get_name=lambda: name)

    def do_kv_cache_update(
        self,
        layer: object,
        keys: torch.Tensor,
        values: torch.Tensor,
        cache: torch.Tensor,
        slots: torch.Tensor,
    ) -> None:
        assert layer is self
        parts = (values, keys) if self._values_first else (keys, values)
        tokens = cache.shape[2]
        cache[slots // tokens, :, slots % tokens] = torch.cat(parts, -1)


class Broken(Attention):
    def do_kv_cache_update(self, *_: object) -> None:
        raise RuntimeError("no such kernel")


def memory_of(cache: Cache) -> DeviceMemory:
    host = cache.memory()
    return DeviceMemory(CopyQueues(LateCard(), cache.flat()), CardPages(host.geometry))


def forms_of(
    cache: Cache, *layers: Any, group: KvGroup = OF_32, ranks: int = 1, converts: bool = False
) -> tuple[CanonicalForms | None, str]:
    """The forms, or why there are none. `layers`: the first one's attention, and that of the
    others."""
    made = engine(cache, ranks=ranks, dtype=next(iter(cache.caches.values())).dtype)  # type: ignore[union-attr]
    context = made.compilation_config.static_forward_context
    first, *others = context
    context[first] = layers[0] if layers else Attention()
    context.update(dict.fromkeys(others, layers[-1] if layers else Attention()))
    laid_out = cache.config, cache.caches, (group,), memory_of(cache)
    with structlog.testing.capture_logs() as logs:
        forms = canonical_forms(made, *laid_out, converts=converts)
    assert len(logs) == (forms is None)
    return forms, logs[0]["sentence"] if logs else ""


@pytest.mark.parametrize("order", ["LBHNC", "LBNHC", "BLHNC", "BLNHC"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_what_the_engine_writes_is_found_in_the_canonical_form(
    order: str, dtype: torch.dtype
) -> None:
    cache = Cache(order, full(dtype=dtype, items=128))
    forms, why = forms_of(cache)
    assert forms is not None, why
    assert {*forms.by_wire} == {""}
    attention, layer = Attention(), cache.caches["b"]
    assert isinstance(layer, torch.Tensor)
    keys, values = torch.randn(2, TOKENS, HEADS, 128).to(dtype).unbind()
    attention.do_kv_cache_update(attention, keys, values, layer, torch.arange(96, 128))
    form = forms.by_wire[""]
    wire = np.zeros(2 * form.geometry.page_bytes, np.uint8)
    form.gather([6, 7], wire, range(1, 2))
    found = torch.from_numpy(wire).view(dtype).view(2, HEADS, 16, 2, 128)
    assert torch.equal(found[:, :, :, 0].transpose(1, 2).reshape(keys.shape), keys)
    assert torch.equal(found[:, :, :, 1].transpose(1, 2).reshape(keys.shape), values)
    one = form.part(1, 2)
    wire = np.zeros(2 * one.geometry.page_bytes, np.uint8)
    one.gather([6, 7], wire, range(1, 2))
    assert torch.equal(torch.from_numpy(wire).view(dtype).view(2, 1, 16, 2, 128), found[:, 1:])


def test_its_copies_are_ordered_with_those_of_the_engines_blocks() -> None:
    cache = Cache("LBHNC", full(items=64))
    made, memory = engine(cache), memory_of(cache)
    context = made.compilation_config.static_forward_context
    context.update(dict.fromkeys(context, Attention()))
    forms = canonical_forms(made, cache.config, cache.caches, (OF_32,), memory, converts=True)
    assert forms is not None
    assert {*forms.by_wire} == {"", "float32"}, "items on a card are not converted"
    form = forms.by_wire[""]
    assert isinstance(form, DeviceMemory)
    assert form.queues is memory.queues


@pytest.mark.parametrize(
    ("layers", "says"),
    [
        ((Attention(values_first=True),), "its kernels do not lay it out as claimed"),
        ((Broken(),), "its kernels cannot be tried: RuntimeError('no such kernel')"),
        ((SimpleNamespace(attn_backend=Attention().attn_backend),), "cannot be tried: Attr"),
        ((Attention(), Attention("OTHER")), "differ in their attention: FLASH_ATTN, OTHER"),
    ],
)
def test_a_claim_that_cannot_be_shown_is_not_made(layers: tuple[Any, ...], says: str) -> None:
    forms, why = forms_of(Cache("LBHNC", full(items=64)), *layers)
    assert forms is None
    assert says in why


def test_other_kinds_of_kv_have_no_canonical_form() -> None:
    wide = Cache("LBHNC", full(items=64))
    cases = [
        (forms_of(wide, group=KvGroup(TOKENS, Kept.WINDOW, 20)), "keep a part of the tokens"),
        (forms_of(wide, group=KvGroup(64)), "of an unknown form"),
        (forms_of(wide, ranks=2), "not shared out evenly over 2 ranks"),
        (forms_of(Cache("LBNHC", full(items=48))), "48 items do not fit the kernel"),
        (forms_of(Cache("LBHNC", plain()), group=KvGroup(4)), "do not fit the kernel"),
    ]
    for (forms, why), says in cases:
        assert forms is None
        assert says in why
    assert forms_of(Cache("LBHNC", full(items=48)))[0] is not None


def test_layers_of_several_sizes_have_none() -> None:
    cache = Cache("LBHNC", full(items=64))
    both = SeveralRegions([memory_of(cache), memory_of(cache)])
    with structlog.testing.capture_logs() as logs:
        found = canonical_forms(
            engine(cache), cache.config, cache.caches, (OF_32,), both, converts=False
        )
    assert found is None
    assert "differ in size" in logs[0]["sentence"]


def test_pages_with_gaps_between_tokens_have_none() -> None:
    cache = Cache("LBHNC", full(items=128))
    for name, layer in cache.caches.items():
        assert isinstance(layer, torch.Tensor)
        cache.caches[name] = layer[..., :128]
    forms, why = forms_of(cache)
    assert forms is None
    assert "of an unknown form" in why


def test_the_connector_orders_canonical_copies_with_all_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Torch's device without memory stands in for a card."""
    monkeypatch.setattr(card, "CudaCard", lambda _: LateCard())
    monkeypatch.setattr(connector, "canonical_forms", lambda *laid_out, **_: laid_out[-1])
    monkeypatch.setattr(connector, "without_draft_layers", lambda _, config: config)
    cache = Cache("LBHNC", full(items=64), device="meta")
    whole: Any = cache.memory()
    of: Any = SimpleNamespace(
        _vllm_config=None,
        _kv_cache_config=cache.config,
        _groups=(OF_32,),
        _setup=SimpleNamespace(kv=KvConfig()),
    )
    memory: Any = BatonConnector._canonical_forms(of, cache.caches, cache.layout, whole)
    assert memory.queues is whole.queues
