"""Checks `[speculation]` of a fleet file, without importing vLLM."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from common.errors import ConfigError

if TYPE_CHECKING:
    from common.config.sections import Config, WorkerConfig

#: Engine arguments that Baton sets itself where an engine speculates.
OWN_ARGUMENTS = ("worker_cls", "scheduler_cls", "async_scheduling")
#: Where a model's config.json says how many MTP layers it has.
MTP_LAYERS = ("num_nextn_predict_layers", "mtp_num_hidden_layers", "num_mtp_modules")
NO_ADAPTERS = 'was never tried with LoRA adapters; set speculation.method = "none"'


def check_speculation(config: Config) -> None:
    """Raises ConfigError for what cannot work, and for what was never tried, by name."""
    for name, worker in config.prefill.items():
        speculation = worker.speculation
        if speculation.method != "none" and not speculation.hand_over:
            sentence = "prefill workers compute prompts and draft nothing; leave it out"
            raise ConfigError(f"prefill.{name}.speculation", sentence)
        if speculation.method != "none":
            _check_worker(config, f"prefill.{name}", worker)
    for name, worker in config.decode.items():
        if worker.speculation.method != "none":
            _check_worker(config, f"decode.{name}", worker)


def check_mtp_layers(config: Config, told: Mapping[str, Any]) -> None:
    """`config`: of one model. `told`: its config.json. Raises ConfigError where a worker drafts
    with MTP layers of a model that has none."""
    inner = told.get("text_config")
    tables = [told, inner] if isinstance(inner, Mapping) else [told]
    if any(table.get(key) for table in tables for key in MTP_LAYERS):
        return
    for role, workers in (("prefill", config.prefill), ("decode", config.decode)):
        for name, worker in workers.items():
            if worker.speculation.method == "mtp":
                sentence = (
                    f'"mtp" needs a model with MTP layers, and the config.json of '
                    f'{config.model.path} names none ({MTP_LAYERS[0]}); use "ngram"'
                )
                raise ConfigError(f"{role}.{name}.speculation.method", sentence)


def _check_worker(config: Config, path: str, worker: WorkerConfig) -> None:
    speculation = worker.speculation
    place, method = f"{path}.speculation", speculation.method
    if config.model_of(worker).pools:
        raise ConfigError(f"{place}.method", 'a pooling model makes no text; set it to "none"')
    if speculation.drafter_has_folder and not speculation.drafter:
        raise ConfigError(f"{place}.drafter", f"{method} needs the folder of its model")
    if not speculation.drafter_has_folder and speculation.drafter:
        own = "with the model's own layers" if method == "mtp" else "without a model"
        raise ConfigError(f"{place}.drafter", f"{method} drafts {own}; leave it out")
    if not speculation.drafter_has_kv and speculation.hand_over:
        raise ConfigError(f"{place}.hand_over", f"{method} has no KV of its own; leave it out")
    if method == "suffix" and speculation.batch_max:
        sentence = "vLLM's suffix drafter cannot be switched off; leave it out"
        raise ConfigError(f"{place}.batch_max", sentence)
    if speculation.ngram_min > speculation.ngram_max:
        sentence = f"{speculation.ngram_min} is more than ngram_max, {speculation.ngram_max}"
        raise ConfigError(f"{place}.ngram_min", sentence)
    _check_arguments(path, method, worker.engine.args)
    if _has_adapters(config, worker):
        raise ConfigError(f"{place}.method", f'"{method}" {NO_ADAPTERS}')


def _check_arguments(path: str, method: str, arguments: dict[str, Any]) -> None:
    for key in OWN_ARGUMENTS:
        if key in arguments:
            sentence = f"is set by Baton where [speculation] has a method ({method}); leave it out"
            raise ConfigError(f"{path}.engine.args.{key}", sentence)
    if str(arguments.get("logprobs_mode", "raw")).startswith("processed"):
        sentence = (
            f'cannot be "{arguments["logprobs_mode"]}" with speculation.method = "{method}": the '
            'sampler of requests without drafts would change them; use "raw_logprobs"'
        )
        raise ConfigError(f"{path}.engine.args.logprobs_mode", sentence)
    if arguments.get("tensor_parallel_size", 1) != 1:
        sentence = f'speculation ("{method}") was tried on one rank only; use 1, or method = "none"'
        raise ConfigError(f"{path}.engine.args.tensor_parallel_size", sentence)
    if arguments.get("enable_lora"):
        raise ConfigError(f"{path}.engine.args.enable_lora", f'"{method}" {NO_ADAPTERS}')


def _has_adapters(config: Config, worker: WorkerConfig) -> bool:
    model = config.model_of(worker)
    return any(config.base_of(adapter) == model for adapter in config.adapters.values())
