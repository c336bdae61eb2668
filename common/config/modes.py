"""Checks that the workers of a fleet file can work together, that its mode agrees with them, and
that there are parsers of the names that it gives."""

from __future__ import annotations

from pathlib import Path

from common.config.sections import Config
from common.engine.vllm.argument_table import KV_ARGUMENTS, TEXT_ARGUMENTS
from common.errors import ConfigError
from common.model.parsers import REASONING, TOOL, known_parsers

#: Engine arguments that change what a model computes, or what its text is.
MODEL_ARGS = sorted(KV_ARGUMENTS | TEXT_ARGUMENTS)


def check_names(config: Config) -> None:
    """Raises ConfigError for two workers of one name: routers know a worker by it."""
    for name in sorted(config.prefill.keys() & config.decode.keys()):
        sentence = f"[prefill.{name}] has the same name; give each worker one of its own"
        raise ConfigError(f"decode.{name}", sentence)


def check_engines(config: Config) -> None:
    """Raises ConfigError for workers that would compute different tokens: a stream may move from
    any decode worker to any other, and go on with KV of any prefill worker."""
    workers = [(f"prefill.{name}", worker.engine) for name, worker in config.prefill.items()]
    workers += [(f"decode.{name}", worker.engine) for name, worker in config.decode.items()]
    for path, engine in workers[1:]:
        first_path, first = workers[0]
        keys = ["kind"] * (engine.kind != first.kind)
        keys += [f"args.{key}" for key in MODEL_ARGS if engine.args.get(key) != first.args.get(key)]
        if keys:
            sentence = f"differs from {first_path}: all workers must compute the same model"
            raise ConfigError(f"{path}.engine.{keys[0]}", sentence)


def check_stores(config: Config) -> None:
    """Raises ConfigError for a store on disk that has no place or nothing to be below of."""
    workers = {f"prefill.{name}": worker.kv.store for name, worker in config.prefill.items()}
    workers |= {f"decode.{name}": worker.kv.store for name, worker in config.decode.items()}
    for name, store in workers.items():
        if store.disk_mib and not Path(store.path).is_absolute():
            sentence = f"{store.path!r} is no absolute path; name a folder on a local disk"
            raise ConfigError(f"{name}.kv.store.path", sentence)
        if store.disk_mib and not store.ram_mib:
            sentence = "blocks get to the disk from memory; set ram_mib, or disk_mib = 0"
            raise ConfigError(f"{name}.kv.store.ram_mib", sentence)


def check_mode(config: Config) -> None:
    """Raises ConfigError with the key to change."""
    router = config.router
    if router.mode == "disaggregated":
        return
    if config.prefill:
        names = ", ".join(f"[prefill.{name}]" for name in config.prefill)
        raise ConfigError(
            "router.mode",
            f"{router.mode} has no prefill workers, but the file has {names}; make them [decode.*] "
            'or set mode = "disaggregated"',
        )
    if router.remote_prefill == "always":
        raise ConfigError(
            "router.remote_prefill",
            f'"always" needs prefill workers, and mode {router.mode} has none; use "auto"',
        )
    if router.mode == "single" and len(config.decode) > 1:
        raise ConfigError(
            "router.mode",
            f"single is exactly one decode worker, but the file has {len(config.decode)}; "
            'remove some, or set mode = "replicated"',
        )


def check_parsers(config: Config) -> None:
    """Raises ConfigError for a parser that the installed vLLM does not have, or that nobody would
    use. Without vLLM the names are not checked; nothing is parsed there."""
    model = config.model
    _check_parser("model.tool_parser", model.tool_parser, TOOL)
    _check_parser("model.reasoning_parser", model.reasoning_parser, REASONING)
    if model.reasoning_parser and config.gateway.text == "light":
        sentence = 'gateway.text = "light" cannot parse reasoning; use "auto" or "vllm"'
        raise ConfigError("model.reasoning_parser", sentence)


def _check_parser(key: str, name: str, where: tuple[str, str]) -> None:
    known = known_parsers(where) if name else ()
    if known and name not in known:
        raise ConfigError(key, f"vLLM has no parser {name!r}; allowed: {', '.join(known)}")
