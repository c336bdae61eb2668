"""Whether the KV of a drafter is handed over, and the KV cache without it.

Theory of operation: the layers of a draft model, of an EAGLE head or of MTP are further layers of
the engine's KV cache, with the same block ids as the model's. With `hand_over`, prefill workers run
the drafter over prompts, too; its layers are then layers like others, and the fingerprint names the
drafter, so that KV goes as it lies between workers that have it. Without, they are left out of all
that the connector knows: a decode worker takes KV of any prefill worker of the model, and its
drafter does not have the prompt. Then drafts are poor, and the text is right all the same, because
the model checks them.

An EAGLE head, and MTP alike, makes its KV of a token out of the model's hidden state there and of
the next token. Of the last prompt token that is one which P does not know. D needs no KV of that
token: it computes it itself, in the model and in the head, with the token that it samples.

Workers of one model that have not the same drafter hand over the model's layers alone, in the
canonical form (`common/kv/canonical.py`), where their KV has that form.
"""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

from common.errors import ConfigError
from common.model.weight_digest import weight_marks

if TYPE_CHECKING:
    from vllm.config import VllmConfig
    from vllm.v1.kv_cache_interface import KVCacheConfig, KVCacheGroupSpec, KVCacheTensor

    from common.config import SpeculationConfig

PREFIXES = ("draft_model.", "mtp.")
"""Of the names that vLLM gives to the layers of a draft model, and of MTP of some models."""
LAYER = re.compile(r"\blayers\.(\d+)\.")


def drafter_parts(speculation: SpeculationConfig) -> dict[str, Any]:
    """What the fingerprint has of the drafter; nothing if its KV stays where it is."""
    if speculation.method == "none" or not speculation.hand_over:
        return {}
    if not speculation.drafter_has_folder:
        return {"drafter": speculation.method}  # its weights are among the model's
    folder = Path(speculation.drafter)
    return {
        "drafter": weight_marks(folder),
        "drafter_config": (folder / "config.json").read_text(encoding="utf-8"),
    }


def drafter_token_bytes(made: VllmConfig, dtype_bytes: int) -> int:
    """Bytes of the drafter's KV per token; 0 without one."""
    speculative = made.speculative_config
    if speculative is None or not speculative.uses_draft_kv_cache():
        return 0
    model, parallel = speculative.draft_model_config, speculative.draft_parallel_config
    heads, size = model.get_num_kv_heads(parallel), model.get_head_size()
    return int(model.get_num_layers(parallel) * heads * size * 2 * dtype_bytes)


def without_draft_layers(made: VllmConfig, config: KVCacheConfig) -> KVCacheConfig:
    """The KV cache as the layers of the model alone see it. Raises ConfigError where the drafter
    has blocks of its own."""
    drafted = _draft_layers(made, config)
    if not drafted:
        return config
    tensors = [part for tensor in config.kv_cache_tensors for part in _kept(tensor, drafted)]
    groups = [_group(group, drafted) for group in config.kv_cache_groups]
    return dataclasses.replace(config, kv_cache_tensors=tensors, kv_cache_groups=groups)


def _draft_layers(made: VllmConfig, config: KVCacheConfig) -> set[str]:
    """The names of the drafter's layers. vLLM counts those of an EAGLE head, and of most MTP, on
    from the model's."""
    speculative = made.speculative_config
    if speculative is None or not speculative.uses_draft_kv_cache():
        return set()
    names = {name for group in config.kv_cache_groups for name in group.layer_names}
    drafted = {name for name in names if name.startswith(PREFIXES)}
    if drafted or speculative.uses_draft_model():
        return drafted
    first = made.model_config.get_total_num_hidden_layers()
    numbers = {name: LAYER.search(name) for name in names}
    return {name for name, found in numbers.items() if found and int(found[1]) >= first}


def _kept(tensor: KVCacheTensor, drafted: set[str]) -> list[KVCacheTensor]:
    """The layers of the model. vLLM lists a drafter's after them, in the order of memory."""
    names = [name for name in tensor.layers if name not in drafted]
    if not names:
        return []
    if tensor.layers[: len(names)] != names:
        raise ConfigError(
            "speculation.drafter", "the KV of the drafter lies among that of the model's layers"
        )
    return [dataclasses.replace(tensor, layers=names)]


def _group(group: KVCacheGroupSpec, drafted: set[str]) -> KVCacheGroupSpec:
    names = [name for name in group.layer_names if name not in drafted]
    if not names:
        raise ConfigError(
            "speculation.drafter",
            "the drafter keeps KV in blocks of another kind than the model does; use one of the "
            "same kind of attention",
        )
    spec, specs = group.kv_cache_spec, getattr(group.kv_cache_spec, "kv_cache_specs", None)
    if specs is not None:
        spec = dataclasses.replace(spec, kv_cache_specs={name: specs[name] for name in names})
    return dataclasses.replace(group, layer_names=names, kv_cache_spec=spec)
