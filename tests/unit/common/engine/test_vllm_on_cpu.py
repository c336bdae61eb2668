"""What depends on the processor alone is in the fingerprint, and AMX may be used where it will."""

from __future__ import annotations

import itertools
import sys
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from common.engine.fingerprint import fingerprint_of, meaning_of, parts_of
from common.engine.vllm_on_cpu import (
    attends_without_amx,
    host_parts,
    page_isa,
    permit_amx,
)
from common.errors import ConfigError

TYPES = (torch.bfloat16, torch.float16, torch.float32)
needs_amx = pytest.mark.skipif(
    not torch.cpu._is_amx_tile_supported(), reason="this processor has no AMX"
)


def engine(dtype: torch.dtype = torch.bfloat16, kinds: str = "", **cache: str) -> Any:
    """As much of a `VllmConfig` as is read here. `kinds`: of its layers."""
    told = {name: name in kinds for name in ("is_attention_free", "is_hybrid", "use_mla")}
    dtypes = {"mamba_cache_dtype": "auto", "mamba_ssm_cache_dtype": "auto", **cache}
    return SimpleNamespace(
        model_config=SimpleNamespace(dtype=dtype, **told),
        cache_config=SimpleNamespace(**dtypes),
        attention_config=SimpleNamespace(backend=None),
    )


@pytest.fixture
def amx(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Says whether the processor is to have AMX."""
    return lambda has: monkeypatch.setattr(torch.cpu, "_is_amx_tile_supported", lambda: has)


def test_a_host_with_amx_lays_bfloat16_out_in_another_way_of_the_same_meaning(amx: Any) -> None:
    amx(True)
    with_it = {dtype: parts_of(host_parts(engine(dtype))) for dtype in TYPES}
    amx(False)
    without = {dtype: parts_of(host_parts(engine(dtype))) for dtype in TYPES}
    alike = {dtype for dtype in TYPES if with_it[dtype] == without[dtype]}
    assert alike == {torch.float16, torch.float32}
    ours, theirs = with_it[torch.bfloat16], without[torch.bfloat16]
    assert fingerprint_of(ours) != fingerprint_of(theirs)
    assert meaning_of(ours) == meaning_of(theirs)


@needs_amx
@pytest.mark.parametrize("tokens", [32, 128])
@pytest.mark.parametrize("items", [32, 80, 128])
def test_pages_differ_only_where_the_fingerprint_does(amx: Any, tokens: int, items: int) -> None:
    """Pages that vLLM's own operation writes."""
    found = []
    for dtype, has in itertools.product(TYPES, (True, False)):
        amx(has)
        found.append((dtype, host_parts(engine(dtype)), written(dtype, tokens, items)))
    for (dtype, parts, page), (other, other_parts, other_page) in itertools.combinations(found, 2):
        if dtype == other and parts == other_parts:
            assert torch.equal(page, other_page)


def written(dtype: torch.dtype, tokens: int, items: int) -> torch.Tensor:
    from vllm import _custom_ops

    numbers = torch.arange(2 * tokens * 2 * items, dtype=torch.int32).to(torch.int16)
    keys, values = numbers.view(torch.float16).to(dtype).view(2, tokens, 2, items).unbind()
    block = torch.zeros(1, 2, 2 * tokens, items, dtype=dtype)
    isa = page_isa(dtype, tokens, items)
    _custom_ops.cpu_attn_reshape_and_cache(
        keys, values, *block.chunk(2, dim=2), torch.arange(tokens), isa
    )
    return block.view(torch.uint8)


@pytest.mark.parametrize(
    ("kinds", "names"),
    [
        ("", {"attn_isa"}),
        ("is_hybrid", {"attn_isa", "state_dtype"}),
        ("is_attention_free", {"state_dtype"}),
        ("use_mla", set()),
    ],
)
def test_each_kind_of_layer_says_what_the_processor_decides_of_it(
    kinds: str, names: set[str]
) -> None:
    assert host_parts(engine(kinds=kinds)).keys() == names


def test_a_state_has_the_type_that_vllm_gave_it_whatever_the_word_for_it() -> None:
    def found(**cache: str) -> str:
        return str(host_parts(engine(kinds="is_hybrid", **cache))["state_dtype"])

    assert found() == found(mamba_ssm_cache_dtype="bfloat16") == "bfloat16"
    assert found(mamba_cache_dtype="float16") == "float16"
    by_host = found(mamba_cache_dtype="float16", mamba_ssm_cache_dtype="float32")
    assert by_host == "float32" != found()


def test_no_other_platform_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    from vllm.platforms import current_platform

    monkeypatch.setattr(type(current_platform), "is_cpu", lambda _: False)
    monkeypatch.setitem(sys.modules, "vllm.v1.attention.backends.cpu_attn", None)
    monkeypatch.setattr(torch.cpu, "_init_amx", lambda: pytest.fail("asked for AMX"))
    assert host_parts(engine(kinds="is_hybrid")) == {}
    permit_amx(engine())


def test_an_engine_that_would_die_of_amx_does_not_start(
    amx: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cpu, "_init_amx", lambda: False)
    amx(False)
    permit_amx(engine())
    amx(True)
    permit_amx(engine(torch.float32))
    with pytest.raises(ConfigError, match="Linux refuses AMX"):
        permit_amx(engine())


@pytest.mark.parametrize(
    ("dtype", "kinds", "has", "named", "expected"),
    [
        (torch.float32, "use_mla", True, None, True),
        (torch.float32, "use_mla", False, None, False),
        (torch.bfloat16, "use_mla", True, None, False),
        (torch.float32, "", True, None, False),
        (torch.float32, "use_mla", True, "AMX_MLA", False),
    ],
)
def test_latent_attention_in_float32_is_not_left_to_amx(
    amx: Any, dtype: torch.dtype, kinds: str, has: bool, named: str | None, expected: bool
) -> None:
    amx(has)
    made = engine(dtype, kinds)
    made.attention_config.backend = named
    assert attends_without_amx(made) is expected
