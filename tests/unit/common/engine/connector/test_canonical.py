"""Which of vLLM's KV caches have a canonical form, and that the attempt finds a wrong claim."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import structlog
import torch

from common.blocks import Kept, KvGroup
from common.config import KvConfig
from common.engine.connector.canonical import CanonicalForms, canonical_forms, form_of
from common.engine.connector.setup import Setup
from common.engine.vllm_on_cpu import page_isa
from common.kv.layout import KvMemory
from common.kv.messages import KvForm
from tests.unit.common.engine.connector.test_memory import Cache, Layers, plain
from tests.unit.common.engine.test_vllm_on_cpu import needs_amx

HEADS, ITEMS = 2, 32


def full(
    names: str = "abc", tokens: int = 32, dtype: torch.dtype = torch.float32, items: int = ITEMS
) -> Layers:
    from vllm.v1.kv_cache_interface import FullAttentionSpec

    spec = FullAttentionSpec(block_size=tokens, num_kv_heads=HEADS, head_size=items, dtype=dtype)
    return dict.fromkeys(names, spec)


def engine(
    cache: Cache, backend: str = "CPU_ATTN", dtype: torch.dtype = torch.float32, ranks: int = 1
) -> Any:
    """As much of a `VllmConfig` as is read here, of a model with `HEADS` heads in all."""
    of = SimpleNamespace(attn_backend=SimpleNamespace(get_name=lambda: backend))
    return SimpleNamespace(
        model_config=SimpleNamespace(dtype=dtype, get_total_num_kv_heads=lambda: HEADS),
        parallel_config=SimpleNamespace(tensor_parallel_size=ranks),
        cache_config=SimpleNamespace(cache_dtype="auto"),
        compilation_config=SimpleNamespace(static_forward_context=dict.fromkeys(cache.caches, of)),
    )


def found(
    cache: Cache, group: KvGroup, made: Any = None, *more: KvGroup
) -> tuple[KvMemory | None, str]:
    """The memory, or why there is none."""
    forms, why = forms_of(cache, group, made, *more)
    return forms.by_wire[""] if forms is not None else None, why


def forms_of(
    cache: Cache, group: KvGroup, made: Any = None, *more: KvGroup, converts: bool = False
) -> tuple[CanonicalForms | None, str]:
    laid_out = cache.config, cache.caches, (group, *more), cache.memory()
    with structlog.testing.capture_logs() as logs:
        forms = canonical_forms(made or engine(cache), *laid_out, converts=converts)
    assert len(logs) == (forms is None)
    return forms, logs[0]["sentence"] if logs else ""


@pytest.fixture(params=[pytest.param(True, marks=needs_amx, id="amx"), False])
def amx(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> bool:
    """Whether this processor has AMX. As if it had not is tested wherever it has."""
    monkeypatch.setattr(torch.cpu, "_is_amx_tile_supported", lambda: request.param)
    return bool(request.param)


@pytest.mark.parametrize("tokens", [16, 32, 64, 128])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_what_vllm_writes_is_found_in_the_canonical_form(
    tokens: int, dtype: torch.dtype, amx: bool
) -> None:
    from vllm import _custom_ops

    isa = page_isa(dtype, tokens, ITEMS)
    assert (isa == "amx") is (amx and dtype == torch.bfloat16 and tokens != 16)
    cache = Cache("LBHNC", full(tokens=tokens, dtype=dtype))
    memory, why = found(cache, KvGroup(tokens), engine(cache, dtype=dtype))
    assert memory is not None, why
    layer = cache.caches["b"]
    assert isinstance(layer, torch.Tensor)
    parts = layer.view(len(layer), HEADS, 2 * tokens, ITEMS).chunk(2, dim=2)
    keys, values = torch.randn(2, tokens, HEADS, ITEMS).to(dtype).unbind()
    slots = torch.arange(3 * tokens, 4 * tokens)
    _custom_ops.cpu_attn_reshape_and_cache(keys, values, *parts, slots, isa)
    ids = list(range(3 * tokens // 16, 4 * tokens // 16))
    wire = np.zeros(len(ids) * memory.geometry.page_bytes, np.uint8)
    memory.gather(ids, wire, range(1, 2))
    shape = len(ids), HEADS, 16, 2, ITEMS
    items = (
        torch.from_numpy(wire).view(dtype).view(shape).transpose(1, 2).reshape(-1, HEADS, 2, ITEMS)
    )
    assert torch.equal(items[:, :, 0], keys)
    assert torch.equal(items[:, :, 1], values)


@pytest.mark.parametrize("has", [True, False])
def test_pages_for_amx_are_claimed_by_a_host_that_has_it(
    has: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where another order is found there, there is no canonical form. The operation is a stand-in:
    vLLM's for AMX may not run here."""
    from vllm import _custom_ops

    isas: list[str] = []

    def for_amx(keys: Any, values: Any, key_part: Any, value_part: Any, *more: Any) -> None:
        isas.append(more[-1])
        tiles = keys.view(4, 16, HEADS, ITEMS // 2, 2).permute(2, 0, 3, 1, 4)
        key_part[0] = tiles.reshape(HEADS, 64, ITEMS)
        tiles = values.view(32, 2, HEADS, ITEMS // 16, 16).permute(2, 3, 0, 4, 1)
        value_part[0] = tiles.reshape(HEADS, 64, ITEMS)

    monkeypatch.setattr(_custom_ops, "cpu_attn_reshape_and_cache", for_amx)
    monkeypatch.setattr(torch.cpu, "_is_amx_tile_supported", lambda: has)
    cache = Cache("LBHNC", full(tokens=64, dtype=torch.bfloat16))
    memory, why = found(cache, KvGroup(64), engine(cache, dtype=torch.bfloat16))
    assert (memory is not None) is has
    assert has or "its kernels do not lay it out as claimed" in why
    assert isas == ["amx" if has else "vec"]


def test_a_kernel_that_lays_it_out_otherwise_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    from vllm import _custom_ops

    def untransposed(keys: Any, values: Any, key_part: Any, value_part: Any, *_: Any) -> None:
        key_part[0], value_part[0] = keys.transpose(0, 1), values.transpose(0, 1)

    monkeypatch.setattr(_custom_ops, "cpu_attn_reshape_and_cache", untransposed)
    memory, why = found(Cache("LBHNC", full()), KvGroup(32))
    assert memory is None
    assert "its kernels do not lay it out as claimed" in why


def test_other_kinds_of_kv_have_no_canonical_form() -> None:
    cache = Cache("LBHNC", full())
    window = KvGroup(32, Kept.WINDOW, 20)
    cases = [
        (found(cache, KvGroup(32), engine(cache, "OTHER")), "not that of CPU_ATTN"),
        (found(cache, window), "keep a part of the tokens"),
        (found(cache, KvGroup(32), None, KvGroup(32)), "keep a part of the tokens"),
        (found(cache, KvGroup(64)), "of an unknown form"),
        (found(Cache("LBNHC", full()), KvGroup(32)), "of an unknown form"),
        (found(Cache("LBHNC", full(dtype=torch.float64)), KvGroup(32)), "of an unknown form"),
        (found(Cache("LBHNC", full(tokens=24)), KvGroup(24)), "24 tokens are not multiples of 16"),
        (found(cache, KvGroup(32), engine(cache, ranks=2)), "not shared out evenly over 2 ranks"),
        (found(Cache("LBHNC", plain("ab") | plain("c", 8)), KvGroup(4)), "layers differ in size"),
    ]
    for (memory, why), says in cases:
        assert memory is None
        assert says in why


@pytest.mark.parametrize(
    ("dtype", "smaller"),
    [(torch.float32, {"bfloat16", "float16"}), (torch.bfloat16, {"float16"})],
)
@pytest.mark.usefixtures("amx")
def test_it_is_converted_only_by_consent_and_never_to_a_larger_type(
    dtype: torch.dtype, smaller: set[str]
) -> None:
    cache = Cache("LBHNC", full(dtype=dtype))
    made, own = engine(cache, dtype=dtype), str(dtype).removeprefix("torch.")
    forms, _ = forms_of(cache, KvGroup(32), made)
    assert forms is not None
    assert (forms.element, {*forms.by_wire}) == (own, {""})
    forms, _ = forms_of(cache, KvGroup(32), made, converts=True)
    assert forms is not None
    assert {*forms.by_wire} == {"", own, *smaller}
    half = forms.by_wire[min(smaller)].geometry.page_bytes
    assert half == HEADS * 16 * 2 * ITEMS * 2


@pytest.mark.parametrize(
    ("kv", "lossy"),
    [
        (KvConfig(), ""),
        (KvConfig(compression="auto"), "l"),
        (KvConfig(compression="auto", exact=True), ""),
    ],
)
def test_the_lossy_meaning_is_said_by_consent_alone(kv: KvConfig, lossy: str) -> None:
    cache = Cache("LBHNC", full())
    forms, _ = forms_of(cache, KvGroup(32))
    setup = Setup("p0", "inc", "f", [], 1, kv, meaning="m", lossy_meaning="l")
    assert forms is not None
    block_bytes = forms.by_wire[""].geometry.block_bytes
    assert form_of(setup, forms) == KvForm("m", lossy, "float32", block_bytes)
    assert form_of(setup, None) == KvForm()
