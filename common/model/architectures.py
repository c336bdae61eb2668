"""Whether the installed vLLM generates text with a model's architecture, told without importing it.

Theory of operation: vLLM's registry is literal tables by what a model is for. An architecture that
stands in none of them is converted by the ending of its name, or runs with transformers' own code
where that can use vLLM's attention, or comes with the model's own code, or with a plugin. What is
said here is what vLLM itself would find out 10 to 20 s later.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping, Sequence
from importlib import metadata
from typing import Any

from common.model.vllm_source import installed_text, literal_tables

REGISTRY = "model_executor/models/registry.py"
GENERATING = ("_TEXT_GENERATION_MODELS", "_MULTIMODAL_MODELS", "_TRANSFORMERS_SUPPORTED_MODELS")
#: What the other tables of the registry are for.
PURPOSES = {
    "_EMBEDDING_MODELS": "an embedding model",
    "_LATE_INTERACTION_MODELS": "a retrieval model",
    "_REWARD_MODELS": "a reward model",
    "_TOKEN_CLASSIFICATION_MODELS": "a classification model",
    "_SEQUENCE_CLASSIFICATION_MODELS": "a classification model",
}
CONVERSIONS = {"embed": "an embedding model", "classify": "a classification model"}
PLUGINS = "vllm.general_plugins"
AUTO_MODELS = "models/auto/modeling_auto.py"
AUTO_TABLES = (
    "MODEL_FOR_CAUSAL_LM_MAPPING_NAMES",
    "MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES",
    "MODEL_FOR_MULTIMODAL_LM_MAPPING_NAMES",
)
NO_TEXT = (
    "makes no text; set task = {task} for it under [model], or name a model that generates text"
)
TASKS = {
    "an embedding model": '"embed"',
    "a classification model": '"classify" or "rerank"',
    "a reward model": '"classify"',
}
NO_TASK = "makes neither text nor one vector of a prompt; serve it with `vllm serve`"
NO_DRAFT = "is a draft model for speculative decoding; name the model that it drafts for"


def why_not_served(config: Mapping[str, Any], *, trusted: bool, files: Sequence[str]) -> str:
    """`config`: the model's config.json with `hf_overrides`. `trusted`: whether the model's own
    code may run. `files`: names of the folder's files. A sentence; empty if vLLM generates text
    with such a model, and where vLLM is not installed."""
    tables = literal_tables("vllm", REGISTRY)
    names = [name for name in config.get("architectures") or () if isinstance(name, str)]
    if not tables:
        return ""
    if _decodes_from_an_encoder(config):
        return (
            f"{names[0] if names else 'it'} has an encoder, and KV of cross attention is not "
            "handed over; name a decoder-only model, or serve this one with `vllm serve`"
        )
    if not names:
        return (
            "its config.json names no `architectures`; add them there, or as "
            '`hf_overrides = {architectures = ["..."]}` under [engine.args]'
        )
    served = any(name in (tables.get(table) or ()) for table in GENERATING for name in names)
    other = _other_purpose(names[0], config, tables, files=files, served=served)
    fault = other or _fault_of_own_code(config, trusted=trusted, files=files, served=served)
    if fault or served or _own_classes(config) or _has_plugins():
        return fault
    return _unknown(names[0], str(config.get("model_type", "")), tables)


def _other_purpose(
    name: str,
    config: Mapping[str, Any],
    tables: Mapping[str, Any],
    *,
    files: Sequence[str],
    served: bool,
) -> str:
    """What the model is for, if not for generating text. `served`: one of its architectures can."""
    if "modules.json" in files:
        what = "an embedding model"
        return f"it is {what} of sentence-transformers (modules.json), which {_way_out(what)}"
    if "speculators_config" in config:
        return f"{name} {NO_DRAFT}"
    if served:
        return ""
    if name in (tables.get("_SPECULATIVE_DECODING_MODELS") or ()):
        return f"{name} {NO_DRAFT}"
    kinds = [purpose for table, purpose in PURPOSES.items() if name in (tables.get(table) or ())]
    return f"{name} is {kinds[0]}, which {_way_out(kinds[0])}" if kinds else ""


def _way_out(what: str) -> str:
    return NO_TEXT.format(task=TASKS[what]) if what in TASKS else NO_TASK


def why_not_pooled(config: Mapping[str, Any], *, trusted: bool, files: Sequence[str]) -> str:
    """The same of a model with a `task`, which may be of any architecture that vLLM knows."""
    names = [name for name in config.get("architectures") or () if isinstance(name, str)]
    tables = literal_tables("vllm", REGISTRY)
    if not tables or not names:
        return "" if names else "its config.json names no `architectures`; add them there"
    if _decodes_from_an_encoder(config):
        return f"{names[0]} has an encoder beside its decoder; serve it with `vllm serve`"
    known = any(name in table for table in tables.values() if table for name in names)
    return _fault_of_own_code(config, trusted=trusted, files=files, served=known)


def _decodes_from_an_encoder(config: Mapping[str, Any]) -> bool:
    text = config.get("text_config")
    inner = text if isinstance(text, Mapping) else {}
    return bool(config.get("is_encoder_decoder") or inner.get("is_encoder_decoder"))


def _own_classes(config: Mapping[str, Any]) -> dict[str, str]:
    """The model's own classes by the `Auto` class that they stand for, as `module.Class`; those of
    other repositories are `repository--module.Class`."""
    entries = config.get("auto_map")
    if not isinstance(entries, Mapping):
        return {}
    named = ("AutoConfig", "AutoModelForCausalLM", "AutoModel")
    return {key: entries[key] for key in named if isinstance(entries.get(key), str)}


def _fault_of_own_code(
    config: Mapping[str, Any], *, trusted: bool, files: Sequence[str], served: bool
) -> str:
    """`served`: vLLM has code for its architecture."""
    classes = _own_classes(config)
    if trusted and classes and not served and "AutoModel" not in classes:
        return (
            "vLLM runs a model's own code by its `AutoModel`, which `auto_map` in config.json does "
            "not name; add it there, or name another model"
        )
    if trusted:
        needed = [place for key, place in classes.items() if key == "AutoConfig" or not served]
        modules = [place for place in needed if "--" not in place]
        missing = sorted(set(map(_module_file, modules)).difference(files))
        names = f"its config.json names code that is not there: {', '.join(missing)}"
        return f"{names}; fetch the model again" if missing else ""
    known_config = "AutoConfig" not in classes or _is_known_type(config.get("model_type"))
    if not classes or (known_config and served):
        return ""
    return (
        "it comes with code of its own (`auto_map` in config.json); if you trust that code, set "
        "`trust_remote_code = true` under [engine.args]"
    )


def _module_file(place: str) -> str:
    return f"{place.partition('.')[0]}.py"


def _is_known_type(model_type: object) -> bool:
    """Whether vLLM or transformers has a configuration class for it."""
    if not isinstance(model_type, str) or not model_type:
        return False
    ours = installed_text("vllm", "transformers_utils/config.py")
    if f"\n    {model_type}=" in ours or f'{{"{model_type}":' in ours:
        return True
    auto = ("models/auto/auto_mappings.py", "models/auto/configuration_auto.py")
    return any(f'"{model_type}"' in installed_text("transformers", file) for file in auto)


def _has_plugins() -> bool:
    """A plugin may register any architecture. vLLM brings some that only find adapters."""
    found = metadata.entry_points(group=PLUGINS)
    return any(not entry.value.startswith("vllm.") for entry in found)


def _unknown(name: str, model_type: str, tables: Mapping[str, Any]) -> str:
    """For an architecture that stands in no table of vLLM's registry."""
    until = (tables.get("_PREVIOUSLY_SUPPORTED_MODELS") or {}).get(name)
    if until:
        return f"vLLM served {name} until {until} and no longer does; name another model"
    plugin = (tables.get("_OOT_SUPPORTED_MODELS") or {}).get(name)
    if plugin:
        return f"vLLM serves {name} only with a plugin ({plugin}); install it, or name another"
    conversions = literal_tables("vllm", "config/model.py").get("_SUFFIX_TO_DEFAULTS") or ()
    for suffix, (runner, conversion) in conversions:
        if name.endswith(suffix):
            if runner == "generate":
                break
            what = CONVERSIONS[conversion]
            return f"{name} is {what}, which {_way_out(what)}"
    if name in _generating_with_transformers():
        if _takes_vllm_attention(model_type):
            return ""
        return (
            f"vLLM does not know {name}, and transformers' own code of it cannot use vLLM's "
            "attention; name another model"
        )
    known = [name for table in GENERATING for name in tables.get(table) or ()]
    near = difflib.get_close_matches(name, known, 1)
    meant = f" ({near[0]} is known)" if near else ""
    return (
        f"vLLM {_version('vllm')} and transformers {_version('transformers')} know no architecture "
        f"{name!r}{meant}; correct `architectures` in config.json, or name another model"
    )


def _generating_with_transformers() -> set[str]:
    tables = literal_tables("transformers", AUTO_MODELS)
    pairs = [pair for table in AUTO_TABLES for pair in tables.get(table) or ()]
    return {
        name for _, names in pairs for name in ((names,) if isinstance(names, str) else names or ())
    }


def _takes_vllm_attention(model_type: str) -> bool:
    """The test of transformers itself (`is_backend_compatible`, `_can_set_attn_implementation`),
    on the text of its module."""
    module = model_type.replace("-", "_")
    text = installed_text("transformers", f"models/{module}/modeling_{module}.py")
    if not text or "_supports_attention_backend = True" in text:
        return True
    has_attention = re.search(r"^class \w*Attention\w*\(nn\.Module\):", text, re.MULTILINE)
    return has_attention is None or "ALL_ATTENTION_FUNCTIONS.get_interface(" in text


def _version(library: str) -> str:
    for distribution in (library, f"{library}-cpu"):
        try:
            return metadata.version(distribution)
        except metadata.PackageNotFoundError:
            continue
    return "?"
