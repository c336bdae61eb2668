"""vLLM's own kernel for GPUs writes K and V where the canonical form of a card reads them. A
program of its own, because Triton decides when it is imported whether it interprets, and vLLM
whether it has Triton."""

from __future__ import annotations

import os

os.environ["TRITON_INTERPRET"] = "1"

from types import SimpleNamespace
from typing import Any

import torch
import triton

from common.engine.connector.page_trial import ClaimedPage, is_as_claimed
from common.kv.device.pages import TokenPage

HEADS, ITEMS = 3, 64


def attention_layer() -> Any:
    """As much of one as writing needs."""
    import vllm.triton_utils as found

    found.triton, found.tl, found.HAS_TRITON = triton, triton.language, True
    from vllm.v1.attention.backend import AttentionType
    from vllm.v1.attention.backends.triton_attn import TritonAttentionImpl

    impl = object.__new__(TritonAttentionImpl)
    impl.head_size, impl.kv_cache_dtype = ITEMS, "auto"
    impl.attn_type, impl._is_per_token_head_quant = AttentionType.DECODER, False
    one = torch.tensor(1.0)
    return SimpleNamespace(impl=impl, _k_scale=one, _v_scale=one)


def check(layer: Any, tokens: int, *, tokens_first: bool) -> None:
    page = TokenPage(HEADS, tokens, 2 * ITEMS * 2, tokens_first)
    made: Any = SimpleNamespace(model_config=SimpleNamespace(dtype=torch.bfloat16))
    cache = torch.zeros(1, dtype=torch.bfloat16)
    assert is_as_claimed(made, ClaimedPage(page, "bfloat16", ITEMS), cache, layer)


if __name__ == "__main__":
    torch.cuda.get_device_capability = lambda _: (9, 0)
    one_layer = attention_layer()
    for tokens in (16, 64):
        check(one_layer, tokens, tokens_first=True)
        check(one_layer, tokens, tokens_first=False)
        print(f"right: {tokens} tokens")
