"""What cannot be handed over is refused by name, with what is supported."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from common.engine.vllm.supported_models import SUPPORTED, refuse_groups, refuse_unsupported
from common.errors import ConfigError


def made(layer_types: list[str] | None = None, window: int | None = None, **changed: object) -> Any:
    model = SimpleNamespace(
        use_mla=False,
        is_hybrid=False,
        is_attention_free=False,
        is_encoder_decoder=False,
        disable_sliding_window=False,
        hf_text_config=SimpleNamespace(layer_types=layer_types),
        get_sliding_window=lambda: window,
    )
    parallel = SimpleNamespace(
        pipeline_parallel_size=1, decode_context_parallel_size=1, prefill_context_parallel_size=1
    )
    for key, value in changed.items():
        setattr(parallel if hasattr(parallel, key) else model, key, value)
    return SimpleNamespace(model_config=model, parallel_config=parallel)


@pytest.mark.parametrize(
    "good",
    [
        made(),
        made(layer_types=["full_attention"] * 4, window=4096),
        made(window=4096, disable_sliding_window=True),
    ],
)
def test_plain_attention_is_taken(good: Any) -> None:
    refuse_unsupported(good)


@pytest.mark.parametrize(
    ("bad", "sentence"),
    [
        (made(use_mla=True), "MLA"),
        (made(is_hybrid=True), "hybrid"),
        (made(is_attention_free=True), "no attention"),
        (made(is_encoder_decoder=True), "cross attention"),
        (made(window=4096), "sliding-window"),
        (made(layer_types=["full_attention", "sliding_attention"]), "sliding-window"),
        (made(layer_types=["chunked_attention"]), "sliding-window"),
        (made(pipeline_parallel_size=2), "engine.args.pipeline_parallel_size: is 2"),
        (made(decode_context_parallel_size=2), "decode_context_parallel_size"),
    ],
)
def test_what_was_never_handed_over_is_refused_with_what_is_supported(
    bad: Any, sentence: str
) -> None:
    with pytest.raises(ConfigError) as refused:
        refuse_unsupported(bad)
    assert sentence in refused.value.message
    assert SUPPORTED in refused.value.message


def test_groups_that_vllm_made_are_looked_at_too() -> None:
    from vllm.v1.kv_cache_interface import FullAttentionSpec, SlidingWindowSpec

    def group(kind: Any, **more: int) -> Any:
        spec = object.__new__(kind)
        object.__setattr__(spec, "sliding_window", more.get("sliding_window"))
        return SimpleNamespace(kv_cache_spec=spec)

    refuse_groups([group(FullAttentionSpec)])
    for groups in (
        [group(FullAttentionSpec), group(SlidingWindowSpec)],
        [group(SlidingWindowSpec, sliding_window=64)],
        [group(FullAttentionSpec, sliding_window=64)],
        [],
    ):
        with pytest.raises(ConfigError, match="supported are"):
            refuse_groups(groups)
