"""Starts vLLM for a worker of a pooling model, which makes one vector or score of each prompt.

Theory of operation: the engine is the one of other workers (`common.engine.vllm.engine`), with
vLLM's pooling runner and without a KV connector. Nothing is handed over, so the worker has no
listener, no store and no KV events. Models that read in both directions keep no KV at all; the
engine then reports blocks for as many of the longest prompts as it computes at once, so that
routers count tokens of every model alike.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import TYPE_CHECKING

from common.blocks import blocks_for
from common.config import Config, EngineConfig, ModelConfig, WorkerConfig
from common.engine.fingerprint import fingerprint_of
from common.engine.forking import nothing_to_collect
from common.engine.port import EngineInfo, pooling_of
from common.engine.vllm.args import (
    as_vllm_takes,
    choose_start_method,
    engine_failed,
    fingerprint_parts,
    first_line,
    prepare_worker,
    size_kv_cache,
    tensor_parallel,
)
from common.engine.vllm.engine import VllmEngine
from common.engine.vllm.model_check import check_model
from common.engine.vllm.open import sockets_in
from common.engine.vllm.start_failure import collected_failures
from common.engine.vllm_on_cpu import permit_amx
from common.errors import BatonError, ConfigError
from common.kv.daemon_link.ranks import RankSideChannels
from common.messages import Capacity, Role
from common.model.checkpoint import read_model_config
from common.model.resolve import model_folder
from common.net.endpoints import engine_sockets

if TYPE_CHECKING:
    from vllm.config import ModelConfig as VllmModelConfig
    from vllm.config import VllmConfig

BLOCK_TOKENS = 128
"""Of a model without KV, for which vLLM has no blocks."""


def open_pooling(
    config: Config, role: Role, name: str, progress: Callable[[str], None]
) -> VllmEngine:
    """Blocks until the engine can serve. Raises BatonError with one sentence."""
    worker = config.worker(role, name)
    check_model(config)
    prepare_worker(config, worker.engine)
    if "vllm" not in sys.modules:
        progress("importing vLLM")
    from vllm.v1.engine.core_client import EngineCoreClient
    from vllm.v1.engine.input_processor import InputProcessor
    from vllm.v1.executor import Executor

    model = model_folder(config)
    made = _vllm_config(config, worker)
    progress("starting the engine")
    sockets = sockets_in(engine_sockets(config, name))
    with nothing_to_collect(), collected_failures() as failures, sockets:
        try:
            client = EngineCoreClient.make_async_mp_client(
                made, Executor.get_class(made), log_stats=True
            )
            processor = InputProcessor(made)
        except BatonError:
            raise
        except Exception as error:
            raise engine_failed(error, failures.first()) from error
    parts = fingerprint_parts(made, model, worker.engine.args) | {"task": config.model.task}
    info = EngineInfo(
        config.model.served_name,
        fingerprint_of(parts),
        "",
        _capacity(made, worker.engine),
        parts,
        pooling_of(config.model),
    )
    return VllmEngine(info, client, processor, RankSideChannels(()))


def _vllm_config(config: Config, worker: WorkerConfig) -> VllmConfig:
    """Raises ConfigError."""
    from vllm.engine.arg_utils import EngineArgs

    engine, folder = worker.engine, model_folder(config)
    given = as_vllm_takes(engine.args)
    given.pop("revision", None)
    told = read_model_config(folder, engine.args.get("hf_overrides"))
    longest = config.model.max_model_len or int(told.get("max_position_embeddings", 0))
    try:
        args = EngineArgs(
            model=str(folder),
            runner="pooling",
            dtype=engine.dtype or config.model.dtype,
            max_model_len=config.model.max_model_len or None,
            block_size=engine.block_tokens or None,
            kv_cache_memory_bytes=engine.kv_cache_mib << 20 or None,
            max_num_seqs=engine.max_num_seqs,
            # Models that read in both directions take a prompt in one step.
            max_num_batched_tokens=max(engine.max_num_batched_tokens, longest),
            # None: vLLM knows with which kinds of pooling the cache works.
            enable_prefix_caching=None if engine.prefix_caching else False,
            distributed_executor_backend="uni" if tensor_parallel(engine) == 1 else "mp",
            use_tqdm_on_load=False,
            mm_processor_cache_gb=0,
            **given,
        )
        made = args.create_engine_config()
    except (ValueError, TypeError, AttributeError, OSError, RuntimeError, AssertionError) as error:
        raise ConfigError("engine", first_line(error)) from error
    refuse_other_task(config.model, made.model_config)
    size_kv_cache(made, engine)
    choose_start_method()
    permit_amx(made)
    return made


def refuse_other_task(model: ModelConfig, made: VllmModelConfig) -> None:
    """Raises ConfigError where vLLM makes something else of the model's prompts."""
    kind = made.score_type
    fits = {"bi-encoder": ("embed",), "cross-encoder": ("rerank", "classify")}.get(kind, ())
    tokens = any("ForTokenClassification" in name for name in made.architectures)
    if tokens or not fits:
        sentence = "it makes something of each token; serve it with `vllm serve`"
        raise ConfigError("model.path", sentence)
    if model.task not in fits:
        what = "makes vectors" if kind == "bi-encoder" else "makes scores"
        allowed = " or ".join(f'"{task}"' for task in fits)
        raise ConfigError("model.task", f'is "{model.task}", but the model {what}; use {allowed}')
    labels = getattr(made.hf_config, "num_labels", 0)
    if model.task == "rerank" and labels != 1:
        sentence = f'the model has {labels} labels, and a reranker has one; use "classify"'
        raise ConfigError("model.task", sentence)


def _capacity(made: VllmConfig, engine: EngineConfig) -> Capacity:
    cache, longest = made.cache_config, made.model_config.max_model_len
    block = min(cache.block_size or BLOCK_TOKENS, BLOCK_TOKENS)
    at_once = engine.max_num_seqs * blocks_for(longest, block)
    return Capacity(
        block_tokens=block,
        kv_blocks=max(cache.num_gpu_blocks or 0, at_once),
        kv_block_bytes=0,
        keeps_prefixes=bool(cache.enable_prefix_caching),
        max_model_len=longest,
        max_num_seqs=engine.max_num_seqs,
        restores=True,
    )
