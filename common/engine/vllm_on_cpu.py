"""What vLLM's kernels for CPUs do by the processor of the host, of which no setting tells.

Theory of operation: the order of K and V inside a page is chosen by vLLM, by element type, sizes
and processor; it calls the choice an *isa*. Where the processor has AMX, pages of bfloat16 have
another order. Other parts of the fingerprint have the types and sizes of every layer, and of a
drafter's. So the isa of a block of `VECTOR_TOKENS` tokens, of whatever heads, says all that the
processor adds, though the layers of a model may differ in size and so in their isa. Latent
attention (MLA) has other kernels, whose blocks differ in their number of tokens. A state has no
such order, but its element type depends on the processor.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from common.errors import ConfigError

if TYPE_CHECKING:
    import torch
    from vllm.config import VllmConfig

AMX = "amx"
VECTOR_TOKENS = 32
"""Blocks of a multiple of it are laid out for the processor."""


def page_isa(dtype: torch.dtype, tokens: int, items: int | None, kv_dtype: str = "auto") -> str:
    """vLLM's name for the kernels that write pages of these sizes on this host. `items`: of one
    head; None: of heads that any of them take. CPUs only."""
    from vllm.v1.attention.backends.cpu_attn import _get_attn_isa

    return str(_get_attn_isa(dtype, tokens, items, kv_dtype))


def host_parts(made: VllmConfig) -> dict[str, Any]:
    """What the fingerprint has of this host's processor; nothing where no CPU computes."""
    from vllm.platforms import current_platform

    if not current_platform.is_cpu():
        return {}
    model, parts = made.model_config, {}
    if not (model.is_attention_free or model.use_mla):
        parts["attn_isa"] = page_isa(model.dtype, VECTOR_TOKENS, None)
    if model.is_hybrid or model.is_attention_free:
        parts["state_dtype"] = _state_dtype(made)
    return parts


def _state_dtype(made: VllmConfig) -> str:
    """Of a state, which vLLM sets for some processors."""
    cache, model = made.cache_config, str(made.model_config.dtype).removeprefix("torch.")
    named = cache.mamba_ssm_cache_dtype, cache.mamba_cache_dtype
    return next((str(name) for name in named if name != "auto"), model)


def attends_without_amx(made: VllmConfig) -> bool:
    """Whether this model has latent attention in an element type that vLLM's kernels for AMX do not
    take, so that the others have to be asked for: vLLM takes those for AMX wherever the processor
    has it, and the engine ends as it loads its weights."""
    import torch
    from vllm.platforms import current_platform

    model, named = made.model_config, made.attention_config.backend
    latent = current_platform.is_cpu() and model.use_mla and model.dtype == torch.float32
    has_amx = torch.cpu._is_amx_tile_supported()  # noqa: SLF001 - what vLLM asks
    return bool(latent and named is None and has_amx)


def permit_amx(made: VllmConfig) -> None:
    """Asks Linux that this process, and those that it forks, may use AMX. A process that uses it
    without dies (SIGILL), and vLLM's kernels do not ask. Raises ConfigError where they would use it
    and Linux refuses."""
    import torch
    from vllm.platforms import current_platform

    has_amx = torch.cpu._is_amx_tile_supported()  # noqa: SLF001 - what vLLM asks
    if not (has_amx and current_platform.is_cpu()):
        return
    permitted = torch.cpu._init_amx()  # noqa: SLF001 - it has no public name
    if not permitted and made.model_config.dtype == torch.bfloat16:
        raise ConfigError(
            "engine.dtype",
            "vLLM would compute bfloat16 by AMX on this CPU, and Linux refuses AMX to this "
            'process; permit the system call arch_prctl, or set "float32"',
        )
