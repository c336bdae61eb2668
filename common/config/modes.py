"""Checks that the workers of a fleet file can work together, that its mode agrees with them, and
that there are parsers of the names that it gives."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from pathlib import Path

from common.config.engine import EngineConfig
from common.config.gateway import CELLS_MAX, CellConfig, is_own
from common.config.sections import Config, ModelConfig, WorkerConfig
from common.engine.vllm.argument_table import KV_ARGUMENTS, TEXT_ARGUMENTS
from common.errors import ConfigError
from common.messages import ADAPTERS_MAX
from common.model.adapters import why_no_name
from common.model.parsers import REASONING, TOOL, known_parsers

MODEL_CHARS_MAX = 64
#: Engine arguments that change what a model computes, or what its text is.
MODEL_ARGS = sorted(KV_ARGUMENTS | TEXT_ARGUMENTS)


def check_names(config: Config) -> None:
    """Raises ConfigError for two workers or pools of one name: routers know them by it."""
    first: dict[str, str] = {}
    for path in config.kv_planes:
        name = path.partition(".")[2]
        if name in first:
            raise ConfigError(path, f"[{first[name]}] has the same name; give each one of its own")
        first[name] = path


def check_models(config: Config) -> None:
    """Raises ConfigError for two models of one name, and for a worker that says no model of the
    file."""
    for name in config.models:
        if not 0 < len(name) <= MODEL_CHARS_MAX or not name.isprintable():
            sentence = f"a model's name is 1 to {MODEL_CHARS_MAX} printable characters"
            raise ConfigError(f"models.{name[:MODEL_CHARS_MAX]!r}", sentence)
    models = config.models.values() or (config.model,)
    names = [name for model in models for name in (model.served_name, *model.aliases)]
    if len(set(names)) < len(names):
        twice = next(name for name in names if names.count(name) > 1)
        sentence = f"two models, or a model and an alias, have the name {twice!r}"
        raise ConfigError("models" if config.models else "model.aliases", sentence)
    known = ", ".join(config.models) or "none; leave the key out"
    names_of = {path: worker.model for path, worker in _workers(config)}
    names_of |= {f"pool.{name}": pool.model for name, pool in config.pool.items()}
    for path, model_name in names_of.items():
        if model_name and model_name not in config.models:
            raise ConfigError(f"{path}.model", f"no such model in the file (there: {known})")
        if len(config.models) > 1 and not model_name:
            raise ConfigError(f"{path}.model", f"says no model, and the file has several: {known}")


def check_warm(config: Config) -> None:
    """Raises ConfigError for a warm worker that nothing would ever wake, and for a floor that the
    model's decode workers cannot reach."""
    for name, worker in config.prefill.items():
        if worker.state == "warm":
            sentence = "only decode workers can be warm; they compute prompts, too"
            raise ConfigError(f"prefill.{name}.state", sentence)
    here = [config.model_of(worker) for worker in config.decode.values()]
    models = {f"models.{name}": model for name, model in config.models.items()}
    for path, model in (models or {"model": config.model}).items():
        if here and model.floor > max(1, here.count(model)):
            sentence = f"{model.floor} decode workers, but the file has {here.count(model)} of it"
            raise ConfigError(f"{path}.floor", sentence)


def check_roles(config: Config) -> None:
    """Raises ConfigError for a mixed worker that could not have both roles."""
    for path, worker in _workers(config):
        if worker.role != "mixed":
            continue
        why = ""
        if worker.state == "warm":
            why = "a warm worker sleeps and wakes as a decode worker; leave one of the two out"
        elif config.router.mode != "disaggregated":
            why = f"mode {config.router.mode} has decode workers only; leave it out"
        elif config.model_of(worker).pools:
            why = "a pooling model hands no KV over; leave it out"
        if why:
            raise ConfigError(f"{path}.role", why)


def check_scale(config: Config) -> None:
    """Raises ConfigError for a controller that could order nothing, for hooks that cannot be
    called, and for shares between which it would never rest."""
    scale = config.router.scale
    if scale.mode == "on" and not (scale.out or scale.in_):
        sentence = '"on" needs a hook: set out or in, or mode = "dry" to see what would be ordered'
        raise ConfigError("router.scale.mode", sentence)
    if scale.busy_min >= scale.busy_max:
        sentence = f"{scale.busy_min:g} is not less than busy_max, {scale.busy_max:g}"
        raise ConfigError("router.scale.busy_min", sentence)
    for key, hook in (("out", scale.out), ("in", scale.in_)):
        try:
            words = shlex.split(hook)
        except ValueError as error:
            raise ConfigError(f"router.scale.{key}", f"is no command: {error}") from error
        if words and "://" in words[0] and not hook.startswith(("http://", "https://")):
            raise ConfigError(f"router.scale.{key}", "a URL begins with http:// or https://")
        if hook and not words:
            raise ConfigError(f"router.scale.{key}", "is blank; leave it out")


def check_tasks(config: Config) -> None:
    """Raises ConfigError for what makes no sense with a pooling model, or does not work with it."""
    models = {f"models.{name}": model for name, model in config.models.items()}
    for path, model in (models or {"model": config.model}).items():
        if model.pools:
            _check_pooling(path, model, model.text or config.gateway.text)
    hands_nothing = "a pooling model hands no KV over"
    for path, worker in _workers(config):
        if not config.model_of(worker).pools:
            continue
        if path.startswith("prefill."):
            raise ConfigError(path, f"{hands_nothing}; make its workers [decode.*]")
        if worker.state == "warm":
            raise ConfigError(f"{path}.state", "workers of a pooling model do not sleep")
    for name, pool in config.pool.items():
        if config.model_of(pool).pools:
            raise ConfigError(f"pool.{name}", f"{hands_nothing}; remove its pool")


def _check_pooling(path: str, model: ModelConfig, text: str) -> None:
    about = f'a model of task = "{model.task}"'
    for key in ("tool_parser", "reasoning_parser"):
        if getattr(model, key):
            raise ConfigError(f"{path}.{key}", f"{about} makes no text; leave it out")
    if text == "light":
        sentence = f'{about} needs vLLM\'s classes; use "auto" or "vllm"'
        raise ConfigError(f"{path}.text", sentence)


def check_adapters(config: Config) -> None:
    """Raises ConfigError for an adapter with the name of a model, and for one of a model that the
    file does not have. Its files are checked where the model's are (`model_check.py`)."""
    models = config.models.values() or (config.model,)
    taken = {name for model in models for name in (model.served_name, *model.aliases)}
    known = ", ".join(config.models or config.served)
    if len(config.adapters) > ADAPTERS_MAX:
        raise ConfigError("adapters", f"has {len(config.adapters)}; a worker takes {ADAPTERS_MAX}")
    for name, adapter in config.adapters.items():
        fault = why_no_name(name)
        if fault:
            raise ConfigError(f"adapters.{name[:MODEL_CHARS_MAX]!r}", fault)
        if name in taken:
            raise ConfigError(f"adapters.{name}", "a model has this name, too; give it another")
        base = config.base_of(adapter)
        if base is not None and base.pools:
            raise ConfigError(f"adapters.{name}", "a pooling model has no adapters here; remove it")
        if base is None:
            what = f"there is no model {adapter.base!r}" if adapter.base else "says no model"
            raise ConfigError(f"adapters.{name}.base", f"{what} (there: {known})")


def _workers(config: Config) -> list[tuple[str, WorkerConfig]]:
    workers = [(f"prefill.{name}", worker) for name, worker in config.prefill.items()]
    return workers + [(f"decode.{name}", worker) for name, worker in config.decode.items()]


def check_engines(config: Config) -> None:
    """Raises ConfigError for workers of one model that would compute different tokens: a stream may
    move from any decode worker to any other, and go on with KV of any prefill worker."""
    by_model: dict[str, list[tuple[str, WorkerConfig]]] = {}
    for path, worker in _workers(config):
        by_model.setdefault(config.model_of(worker).served_name, []).append((path, worker))
    for workers in by_model.values():
        _check_alike([(path, worker.engine) for path, worker in workers])
        _check_types(config, workers)


def _check_alike(workers: list[tuple[str, EngineConfig]]) -> None:
    for path, engine in workers[1:]:
        first_path, first = workers[0]
        keys = ["kind"] * (engine.kind != first.kind)
        keys += [f"args.{key}" for key in MODEL_ARGS if engine.args.get(key) != first.args.get(key)]
        if keys:
            sentence = f"differs from {first_path}: all workers must compute the same model"
            raise ConfigError(f"{path}.engine.{keys[0]}", sentence)


def _check_types(config: Config, workers: list[tuple[str, WorkerConfig]]) -> None:
    """Decode workers compute in one element type, and prefill workers in that or in another one
    from which KV may be converted."""
    decodes = [(path, worker) for path, worker in workers if path.startswith("decode.")]
    if not decodes:
        return
    first_path, first = decodes[0]
    for path, worker in workers:
        ours, theirs = (one.engine.dtype or config.model_of(one).dtype for one in (worker, first))
        if ours == theirs:
            continue
        if (path, worker) in decodes:
            sentence = f"differs from {first_path}: streams move between decode workers"
            raise ConfigError(f"{path}.engine.dtype", sentence)
        if not (worker.kv.may_lose and first.kv.may_lose):
            sentence = (
                f"differs from {first_path}, and KV is converted only where both workers allow it: "
                "set [kv] compression, and not exact"
            )
            raise ConfigError(f"{path}.engine.dtype", sentence)


def check_stores(config: Config) -> None:
    """Raises ConfigError for a store on disk that has no place or nothing to be below of, and for
    copies of streams that no store could hold."""
    for name, kv in config.kv_planes.items():
        store = kv.store
        if store.disk_mib and not Path(store.path).is_absolute():
            sentence = f"{store.path!r} is no absolute path; name a folder on a local disk"
            raise ConfigError(f"{name}.kv.store.path", sentence)
        if store.key_file and not Path(store.key_file).is_absolute():
            sentence = f"{store.key_file!r} is no absolute path; name a file of the daemons' user"
            raise ConfigError(f"{name}.kv.store.key_file", sentence)
        if store.disk_mib and not store.ram_mib:
            sentence = "blocks get to the disk from memory; set ram_mib, or disk_mib = 0"
            raise ConfigError(f"{name}.kv.store.ram_mib", sentence)
    policy = config.kv.checkpoint.policy
    holders = [
        worker
        for worker in config.decode.values()
        if worker.kv.store.ram_mib and worker.kv.store.pull
    ]
    if policy != "none" and config.decode and not holders:
        sentence = f'"{policy}" needs stores that hold the copies: set [kv.store] ram_mib and pull'
        raise ConfigError("kv.checkpoint.policy", sentence)
    if config.kv.copy_ahead_ms and config.decode and not holders:
        sentence = "it needs stores that hold the copies: set [kv.store] ram_mib and pull, or 0"
        raise ConfigError("kv.copy_ahead_ms", sentence)


def check_pools(config: Config) -> None:
    """Raises ConfigError for a pool that can hold nothing, or that nobody would send anything."""
    for name, pool in config.pool.items():
        path, store = f"pool.{name}.kv.store", pool.kv.store
        if not store.ram_mib:
            raise ConfigError(f"{path}.ram_mib", "a pool holds KV in memory; say how many MiB")
        if not store.pull:
            raise ConfigError(f"{path}.pull", "workers pull out of a pool; leave it true")
        model = config.model_of(pool)
        stores = [
            worker.kv.store.ram_mib and worker.kv.store.pull
            for _, worker in _workers(config)
            if config.model_of(worker) == model
        ]
        if not any(stores):
            sentence = (
                f"no worker of {model.served_name} has a store, out of which a pool gets KV; set "
                "[kv.store] ram_mib, and leave pull true"
            )
            raise ConfigError(f"pool.{name}", sentence)


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
    models = [config.model_of(worker).served_name for worker in config.decode.values()]
    most = max(map(models.count, models), default=0)
    if router.mode == "single" and most > 1:
        raise ConfigError(
            "router.mode",
            f"single is exactly one decode worker, but the file has {most}; "
            'remove some, or set mode = "replicated"',
        )


def check_parsers(config: Config) -> None:
    """Raises ConfigError for a parser that the installed vLLM does not have, or that nobody would
    use. Without vLLM the names are not checked; nothing is parsed there."""
    models = {f"models.{name}": model for name, model in config.models.items()}
    for path, model in (models or {"model": config.model}).items():
        _check_parsers(path, model, model.text or config.gateway.text)


def _check_parsers(path: str, model: ModelConfig, text: str) -> None:
    _check_parser(f"{path}.tool_parser", model.tool_parser, TOOL)
    _check_parser(f"{path}.reasoning_parser", model.reasoning_parser, REASONING)
    if model.reasoning_parser and text == "light":
        sentence = 'text = "light" cannot parse reasoning; use "auto" or "vllm"'
        raise ConfigError(f"{path}.reasoning_parser", sentence)


def _check_parser(key: str, name: str, where: tuple[str, str]) -> None:
    known = known_parsers(where) if name else ()
    if known and name not in known:
        raise ConfigError(key, f"vLLM has no parser {name!r}; allowed: {', '.join(known)}")


def check_cells(cells: Mapping[str, CellConfig]) -> None:
    """Raises ConfigError for one cell alone, for two that are the same fleet, and for one whose
    routers cannot be found."""
    if len(cells) == 1 or len(cells) > CELLS_MAX:
        sentence = f"a gateway serves 2 to {CELLS_MAX} cells; for one fleet, leave them out"
        raise ConfigError("gateway.cells", sentence)
    seen: dict[tuple[str, str], str] = {}
    for name, cell in cells.items():
        other = seen.setdefault((cell.run_dir, cell.control), name)
        if other != name:
            sentence = f"has the run_dir and control of {other}; each cell is a fleet of its own"
            raise ConfigError(f"gateway.cells.{name}", sentence)
        lacks = [n for n, at in {"control": cell.control, **cell.standby}.items() if not at]
        if lacks and not cell.run_dir and not is_own(cell):
            sentence = f"where is {lacks[0]}? Give its endpoint, or the run_dir of the cell"
            raise ConfigError(f"gateway.cells.{name}", sentence)
