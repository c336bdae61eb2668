"""Makes a `VllmConfig` from our configuration: one that starts fast, stays small and does not spin.

Theory of operation (docs/vllm-and-ucx.md, "vLLM as the engine"): there is one EngineCore process
with the worker inside it (`uni`). It is forked after vLLM was imported here, so that an engine
costs seconds. The KV cache has a fixed size, so that nothing is profiled. vLLM 0.32 on CPU cannot
load its own ahead-of-time compiled graph and would compile again at each start (35 s), so that
cache is off and Inductor's own is used. Errors that can be found before the fork are raised here,
because the child can only log them.
"""

from __future__ import annotations

import hashlib
import logging
import os
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psutil

from common.config import Config, EngineConfig, WorkerConfig
from common.engine.adapters import BATCH_SLOTS, resident_max
from common.engine.fingerprint import fingerprint_of, lossy_meaning_of, meaning_of, parts_of
from common.engine.speculation.arguments import engine_arguments, samples_apart
from common.engine.speculation.draft_layers import drafter_parts, drafter_token_bytes
from common.engine.vllm import kv_release
from common.engine.vllm.argument_table import KV_ARGUMENTS
from common.engine.vllm.supported_models import refuse_unsupported, restores
from common.engine.vllm_on_cpu import attends_without_amx, host_parts, permit_amx
from common.errors import BatonError, Code, ConfigError
from common.messages import WIRE_VERSION
from common.model.adapters import RANK_MAX_DEFAULT
from common.model.embedded import EMBEDDED_MODEL_NAME
from common.model.weight_digest import weight_marks

if TYPE_CHECKING:
    from vllm.config import VllmConfig

DEFAULT_KV_MIB = 256
MEMORY_SHARE = 0.25
HARMLESS_WARNINGS = (
    "vllm.triton_utils.importing",
    "vllm.engine.arg_utils",
    "vllm.platforms.cpu",
    "vllm.config.vllm",
    "vllm.v1.worker.cpu_worker",
    "vllm.distributed.kv_transfer.kv_connector.v1.base",
)
RESUME_SAMPLER = "common.engine.vllm.resume_sampler:ResumeSampler"
ADAPTERS_IN_USE_MAX = 1_024
PLACE_DEPENDENT = ("_name_or_path", "transformers_version")


def prepare_process(engine: EngineConfig, workers: int, *, eager: bool = False) -> None:
    """Sets the environment that vLLM and OpenMP read once, before the first import of either."""
    _prepare(library_environment(engine, workers, os.environ, eager=eager))


def prepare_worker(config: Config, engine: EngineConfig) -> None:
    """The same for a worker. One that was forked off a process with the same environment has both
    imported already."""
    _prepare(worker_environment(config, engine, os.environ))


def _prepare(environment: Mapping[str, str]) -> None:
    for name in os.environ.keys() - environment.keys():
        del os.environ[name]
    os.environ.update(environment)
    logging.getLogger("vllm").setLevel(logging.WARNING)
    for known in HARMLESS_WARNINGS:
        logging.getLogger(known).setLevel(logging.ERROR)
    warnings.filterwarnings("ignore", category=FutureWarning, module=r"vllm\.|torch\.")
    warnings.filterwarnings("ignore", message="The given buffer is not writable")  # it is copied


def library_environment(
    engine: EngineConfig, workers: int, given: Mapping[str, str], *, eager: bool = False
) -> dict[str, str]:
    """The environment `given`, with what vLLM and OpenMP read once.

    vLLM binds each CPU rank to a NUMA node of its own and fails if there are fewer nodes; here the
    ranks share the cores, unless the environment names them. numba, which searches n-grams, gives
    torch its own number of threads, by default one for each core: engines that share cores then
    wait for each other in every matrix product, which took 20 times as long. An `eager` engine
    compiles nothing at all: vLLM would still compile the counting of logprobs at the first request
    for some and make no step meanwhile (5 to 30 s on CPU), which counts as a hung engine."""
    ranks = tensor_parallel(engine)
    threads = engine.threads or max(1, (os.cpu_count() or 1) // max(1, workers * ranks))
    defaults = {
        "OMP_NUM_THREADS": str(threads),
        "NUMBA_NUM_THREADS": given.get("OMP_NUM_THREADS", str(threads)),
        "VLLM_LOGGING_LEVEL": "WARNING",
        "VLLM_CONFIGURE_LOGGING": "0",
        "VLLM_NO_USAGE_STATS": "1",
        "VLLM_USE_AOT_COMPILE": "0",
        "TOKENIZERS_PARALLELISM": "false",
        "HF_HUB_OFFLINE": "1",
    }
    if ranks > 1:
        defaults["VLLM_CPU_OMP_THREADS_BIND"] = "nobind"
    if eager or engine.args.get("enforce_eager"):
        defaults["TORCHDYNAMO_DISABLE"] = "1"
    fixed = {"VLLM_ENABLE_V1_MULTIPROCESSING": "0", "VLLM_ALLOW_INSECURE_SERIALIZATION": "0"}
    environment = {**defaults, **given, **fixed}
    if not environment.get("VLLM_CPU_KVCACHE_SPACE", "unset"):
        del environment["VLLM_CPU_KVCACHE_SPACE"]
    return environment


def worker_environment(
    config: Config, engine: EngineConfig, given: Mapping[str, str]
) -> dict[str, str]:
    """That of a worker. `config`: of its model."""
    workers = len(config.prefill) + len(config.decode)
    return library_environment(engine, workers, given, eager=is_eager(config))


def make_vllm_config(
    config: Config, worker: WorkerConfig, model: Path, setup: dict[str, Any], events: str = ""
) -> VllmConfig:
    """`setup` is the connector's; its fingerprint is filled in here. `events` is the endpoint on
    which KV events are published; empty publishes none. Raises BatonError(CONFIG_INVALID)."""
    from vllm.config import KVEventsConfig, KVTransferConfig
    from vllm.engine.arg_utils import EngineArgs
    from vllm.platforms import current_platform
    from vllm.v1.attention.backends.registry import AttentionBackendEnum

    engine = worker.engine
    transfer = KVTransferConfig(
        kv_connector="BatonConnector",
        kv_connector_module_path="common.engine.connector.connector",
        kv_role="kv_both",
        engine_id=setup["name"] + "-" + setup["incarnation"],
        kv_connector_extra_config={"baton": setup},
        kv_load_failure_policy="recompute",
    )
    try:
        arguments = {**_defaults(config), **as_vllm_takes(engine.args)}
        arguments.pop("revision", None)  # `model` is that revision's folder
        _adapter_capacity(arguments)
        args = EngineArgs(
            model=str(model),
            dtype=_dtype(config, engine),
            max_model_len=config.model.max_model_len or None,
            block_size=engine.block_tokens or None,
            kv_cache_memory_bytes=engine.kv_cache_mib << 20 or None,
            max_num_seqs=engine.max_num_seqs,
            max_num_batched_tokens=engine.max_num_batched_tokens,
            enable_prefix_caching=engine.prefix_caching,
            distributed_executor_backend="uni" if tensor_parallel(engine) == 1 else "mp",
            kv_transfer_config=transfer,
            kv_events_config=KVEventsConfig(
                enable_kv_cache_events=bool(events),
                publisher="zmq" if events else "null",
                endpoint=events,
            ),
            use_tqdm_on_load=False,
            mm_processor_cache_gb=0,  # images come processed
            reasoning_parser=config.model.reasoning_parser,
            **(_sleeps() if worker.state == "warm" else {}),
            **engine_arguments(worker, on_cpu=current_platform.is_cpu()),
            **arguments,
        )
        made = args.create_engine_config()
        if engine.prefix_caching and _has_state(made):
            args.enable_prefix_caching = False
            made = args.create_engine_config()
        if attends_without_amx(made):
            args.attention_backend = AttentionBackendEnum.CPU_MLA
            made = args.create_engine_config()
    except (ValueError, TypeError, AttributeError, OSError, RuntimeError, AssertionError) as error:
        raise ConfigError("engine", first_line(error)) from error
    refuse_unsupported(made)
    if restores(made) and not samples_apart(made):  # whose worker has it from the start
        others = made.model_config.logits_processors or []
        made.model_config.logits_processors = [*others, RESUME_SAMPLER]
    size_kv_cache(made, engine)
    setup["fingerprint_parts"] = fingerprint_parts(made, model, engine.args) | parts_of(
        drafter_parts(worker.speculation)
    )
    setup["draft_layers"] = worker.speculation.hand_over
    setup["fingerprint"] = fingerprint_of(setup["fingerprint_parts"])
    setup["meaning"] = meaning_of(setup["fingerprint_parts"])
    setup["lossy_meaning"] = lossy_meaning_of(setup["fingerprint_parts"])
    choose_start_method()
    permit_amx(made)
    return made


def _has_state(made: VllmConfig) -> bool:
    """Whether layers keep a state in place of KV. vLLM's prefix caching for those is experimental;
    its engine stood still here, without any handoff."""
    return bool(made.model_config.is_hybrid or made.model_config.is_attention_free)


def as_vllm_takes(given: Mapping[str, Any]) -> dict[str, Any]:
    """Engine arguments of the fleet file as vLLM's class takes them. It makes its own structs of
    most tables itself, but sets an attribute of this one first. Raises what vLLM raises."""
    from vllm.config import StructuredOutputsConfig

    name = "structured_outputs_config"
    return {**given, name: StructuredOutputsConfig(**given[name])} if name in given else {**given}


def _lets_tokens_go(made: VllmConfig) -> bool:
    """Whether some layers keep a part of the tokens only, as a window, a chunk or a state."""
    text = made.model_config.hf_text_config
    kinds = getattr(text, "layer_types", None) or ()
    local = any("sliding" in kind or "chunked" in kind for kind in kinds)
    chunked = getattr(text, "attention_chunk_size", None)
    return bool(_has_state(made) or local or chunked or made.model_config.get_sliding_window())


def tensor_parallel(engine: EngineConfig) -> int:
    """The number of ranks, each of which is a process if there are several."""
    return int(engine.args.get("tensor_parallel_size", 1))


def _dtype(config: Config, engine: EngineConfig) -> str:
    """float32 for the embedded model, so that its choices are stable; vLLM's own `auto` would cast
    it to bfloat16."""
    if engine.dtype:
        return engine.dtype
    embedded = config.model.path == EMBEDDED_MODEL_NAME and config.model.dtype == "auto"
    return "float32" if embedded else config.model.dtype


def _defaults(config: Config) -> dict[str, Any]:
    """Arguments that `engine.args` may override. The embedded model runs uncompiled, which starts
    in 4 s instead of 10 to 35."""
    eager = {"enforce_eager": True} if is_eager(config) else {}
    return {**eager, "enable_lora": bool(config.model_adapters)}


def _adapter_capacity(arguments: dict[str, Any]) -> None:
    """vLLM has room for all adapters that may be in use at once, so that it never lets one go by
    itself; which stay is for `common.engine.adapters` to decide. What it does not use is free."""
    if arguments["enable_lora"]:
        arguments["max_loras"] = arguments.get("max_loras", BATCH_SLOTS)
        arguments["max_cpu_loras"] = max(ADAPTERS_IN_USE_MAX, arguments["max_loras"])


def rank_max(engine: EngineConfig) -> int:
    """The highest rank of an adapter that its engine takes."""
    return int(engine.args.get("max_lora_rank", RANK_MAX_DEFAULT))


def adapter_slots(config: Config, engine: EngineConfig) -> int:
    """How many adapters stay in the engine's memory though no request runs with them; 0: it serves
    none."""
    arguments = {**_defaults(config), **engine.args}
    if not arguments["enable_lora"]:
        return 0
    return resident_max(arguments, len(config.model_adapters))


def is_eager(config: Config) -> bool:
    """Whether the engine runs uncompiled by default."""
    return config.model.path == EMBEDDED_MODEL_NAME


def _sleeps() -> dict[str, Any]:
    """How the engine of a warm worker gives its memory back."""
    from vllm.platforms import current_platform

    if current_platform.is_cpu():
        return {"worker_extension_cls": kv_release.NAME}
    return {"enable_sleep_mode": True}


def choose_start_method() -> None:
    """Forks on CPU, where the import is most of the start; CUDA does not survive a fork."""
    from vllm.platforms import current_platform

    method = "fork" if current_platform.is_cpu() else "spawn"
    os.environ["VLLM_WORKER_MULTIPROC_METHOD"] = method


def kv_token_bytes(made: VllmConfig) -> int:
    """Bytes of KV per token over all layers, on one rank."""
    parallel = made.parallel_config
    heads = made.model_config.get_num_kv_heads(parallel)
    size = made.model_config.get_head_size()
    layers = made.model_config.get_num_layers(parallel)
    vectors = 1 if made.model_config.use_mla else 2
    return int(layers * heads * size * vectors * _kv_dtype_bytes(made))


def fingerprint_parts(made: VllmConfig, model: Path, given: Mapping[str, Any]) -> dict[str, str]:
    """What the fingerprint is made of. The device is part of it, because the attention kernel
    decides the layout of a page, and kernels are chosen by device, and on CPUs by processor. It is
    no part of the meaning.
    `given`: the engine arguments of the fleet file, of which those are part of it that change what
    KV means."""
    from vllm import envs
    from vllm.platforms import current_platform

    parallel = made.parallel_config
    architecture = made.model_config.hf_config.to_dict()
    values: dict[str, Any] = {
        "wire": WIRE_VERSION,
        "device": [current_platform.device_type, current_platform.get_device_name()],
        "config": {k: v for k, v in architecture.items() if k not in PLACE_DEPENDENT},
        "weights": weight_marks(model),
        "code": _code_revision(model) if made.model_config.trust_remote_code else "",
        "dtype": str(made.model_config.dtype),
        "kv_dtype": str(made.cache_config.cache_dtype),
        "block_tokens": made.cache_config.block_size,
        "one_group": bool(made.scheduler_config.disable_hybrid_kv_cache_manager),
        "state_mode": str(made.cache_config.mamba_cache_mode),
        "kv_layout": str(envs.VLLM_KV_CACHE_LAYOUT),
        "layers": made.model_config.get_num_layers(parallel),
        "kv_heads": made.model_config.get_num_kv_heads(parallel),
        "head_size": made.model_config.get_head_size(),
        "tensor_parallel": parallel.tensor_parallel_size,
        "pipeline_parallel": parallel.pipeline_parallel_size,
    }
    return parts_of(values | host_parts(made) | argument_parts(given))


def argument_parts(given: Mapping[str, Any]) -> dict[str, Any]:
    """The engine arguments that change what KV means. The seed does if the weights are drawn."""
    names = KV_ARGUMENTS | ({"seed"} if given.get("load_format") == "dummy" else set())
    return {f"args.{name}": given[name] for name in sorted(names & given.keys())}


def _code_revision(model: Path) -> list[str]:
    """Names and hashes of the model's own code."""
    files = sorted(model.glob("*.py"))
    return [f"{file.name}:{hashlib.sha256(file.read_bytes()).hexdigest()[:16]}" for file in files]


def size_kv_cache(made: VllmConfig, engine: EngineConfig) -> None:
    """On CPU, sets the size of the KV cache if there is none. Raises ConfigError for a size that
    cannot hold one longest request or exceeds the free memory. Where layers keep a part of the
    tokens only, vLLM itself finds out whether one request fits."""
    from vllm.platforms import current_platform

    if not current_platform.is_cpu():
        return
    longest = made.model_config.max_model_len + made.cache_config.block_size
    token_bytes = kv_token_bytes(made) + drafter_token_bytes(made, _kv_dtype_bytes(made))
    needed = 0 if _lets_tokens_go(made) else longest * token_bytes
    available = psutil.virtual_memory().available
    asked = engine.kv_cache_mib << 20
    if not asked:
        asked = min(max(DEFAULT_KV_MIB << 20, 4 * needed), int(available * MEMORY_SHARE))
        made.cache_config.kv_cache_memory_bytes = asked
    if asked > available:
        raise ConfigError(
            "engine.kv_cache_mib",
            f"{asked >> 20} MiB of KV cache, but this host has {available >> 20} MiB free",
        )
    if asked < needed:
        raise ConfigError(
            "engine.kv_cache_mib",
            f"{asked >> 20} MiB of KV cache cannot hold one request of model.max_model_len = "
            f"{made.model_config.max_model_len} tokens, which needs {-(-needed >> 20)} MiB",
        )


def _kv_dtype_bytes(made: VllmConfig) -> int:
    name = str(made.cache_config.cache_dtype)
    if name.startswith("fp8"):
        return 1
    return int(made.model_config.dtype.itemsize)


def first_line(error: Exception) -> str:
    """What is useful of an error of vLLM's."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    useful = [line for line in lines if not line.startswith(("For further", "1 validation"))]
    return (useful or [type(error).__name__])[0]


def engine_failed(error: BaseException, cause: str = "") -> BatonError:
    """`cause` is the error of the engine's own process; empty if it reported none."""
    reason = cause or first_line(Exception(str(error)))
    return BatonError(Code.ENGINE_FAILED, f"the engine failed: {reason}")
