"""Starts vLLM for a worker. vLLM forks, so this runs before the daemon's event loop exists."""

from __future__ import annotations

import contextlib
import os
import shutil
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from common.blocks import keeps_part
from common.config import Config, EngineConfig
from common.engine.adapters import AdapterTable
from common.engine.connector.metadata import PARAMS_KEY
from common.engine.forking import nothing_to_collect
from common.engine.port import EngineInfo
from common.engine.speculation.arguments import samples_apart, without_speculation
from common.engine.vllm import lora_on_cpu
from common.engine.vllm.adapter_loader import VllmAdapters
from common.engine.vllm.args import (
    adapter_slots,
    engine_failed,
    make_vllm_config,
    prepare_worker,
    rank_max,
    tensor_parallel,
)
from common.engine.vllm.engine import VllmEngine
from common.engine.vllm.model_check import check_model
from common.engine.vllm.start_failure import collected_failures
from common.engine.vllm.supported_models import restores
from common.errors import BatonError
from common.kv.daemon_link.ranks import RankSideChannels
from common.kv.messages import KvListening
from common.messages import Capacity, Role
from common.model.resolve import model_folder
from common.net.endpoints import engine_sockets, kv_events_address, kv_side_address
from common.process.owned_files import own_folder
from common.security.open import kv_secrets_file

if TYPE_CHECKING:
    from vllm.config import VllmConfig

LISTEN_SECONDS = 10.0
BLOCK_TOKENS_MAX = 1024
"""Of a model with state layers only vLLM says that a block is as long as the longest sequence."""
RPC_PATH = "VLLM_RPC_BASE_PATH"


def open_vllm(
    config: Config, role: Role, name: str, incarnation: str, progress: Callable[[str], None]
) -> VllmEngine:
    """Blocks until the engine can serve. Raises BatonError with one sentence."""
    worker = config.worker(role, name)
    check_model(config)
    model = model_folder(config)
    prepare_worker(config, worker.engine)
    if "vllm" not in sys.modules:
        progress("importing vLLM")
    from vllm.v1.engine.core_client import EngineCoreClient
    from vllm.v1.engine.input_processor import InputProcessor
    from vllm.v1.executor import Executor

    ranks = range(tensor_parallel(worker.engine))
    side_addresses = [kv_side_address(config, name, rank) for rank in ranks]
    setup: dict[str, Any] = {
        "name": name,
        "incarnation": incarnation,
        "fingerprint": "",
        "side_addresses": side_addresses,
        "daemon_pid": os.getpid(),
        "kv": msgspec.to_builtins(worker.kv),
        "kv_secrets_file": kv_secrets_file(config, worker.kv),
    }
    events = kv_events_address(config, name) if worker.engine.publishes_kv_events else ""
    made = make_vllm_config(config, worker, model, setup, events)
    made.kv_transfer_config.kv_connector_extra_config[PARAMS_KEY] = setup
    lora_on_cpu.install_for(made)
    progress("starting the engine")
    sockets = sockets_in(engine_sockets(config, name))
    with nothing_to_collect(), collected_failures() as failures, sockets:
        try:
            client = EngineCoreClient.make_async_mp_client(
                made, Executor.get_class(made), log_stats=True
            )
            processor = InputProcessor(without_speculation(made) if samples_apart(made) else made)
        except BatonError:
            raise
        except Exception as error:
            raise engine_failed(error, failures.first()) from error
    progress("waiting for the KV listener")
    side = RankSideChannels(side_addresses)
    try:
        listening = side.wait_listening(LISTEN_SECONDS)
    except BatonError:
        side.close()
        client.shutdown(0)
        raise
    capacity = _capacity(made, worker.engine, listening, pulls=bool(events))
    fingerprint, parts = setup["fingerprint"], setup["fingerprint_parts"]
    method = worker.speculation.method
    info = EngineInfo(
        config.model.served_name,
        fingerprint,
        listening.kv_address,
        capacity,
        parts,
        speculation="" if method == "none" else method,
        drafter_cold=worker.speculation.cold_after,
        step_tokens=worker.speculation.step_tokens,
    )
    adapters = _adapters(config, worker.engine, model, VllmAdapters(client))
    return VllmEngine(info, client, processor, side, events, adapters=adapters)


def _capacity(
    made: VllmConfig, engine: EngineConfig, listening: KvListening, *, pulls: bool
) -> Capacity:
    """`pulls`: whether the router learns what the prefix cache holds."""
    cache, groups = made.cache_config, listening.groups
    counts_groups = len(groups) > 1 or keeps_part(groups) or made.model_config.use_mla
    return Capacity(
        block_tokens=min(cache.block_size, BLOCK_TOKENS_MAX),
        kv_blocks=cache.num_gpu_blocks,
        kv_block_bytes=listening.block_bytes,
        kv_groups=listening.groups if counts_groups else (),
        keeps_prefixes=bool(cache.enable_prefix_caching),
        max_model_len=made.model_config.max_model_len,
        max_num_seqs=engine.max_num_seqs,
        pull_blocks=listening.pull_blocks if pulls else 0,
        disk_blocks=listening.disk_blocks if pulls else 0,
        restores=restores(made),
        kv_layers=listening.layers,
        kv_meaning=listening.form.meaning,
        kv_lossy_meaning=listening.form.lossy_meaning,
        kv_element=listening.form.element,
        kv_canonical_bytes=listening.form.block_bytes,
    )


def _adapters(
    config: Config, engine: EngineConfig, base: Path, loader: VllmAdapters
) -> AdapterTable | None:
    """None: this engine serves none."""
    slots, most = adapter_slots(config, engine), rank_max(engine)
    if not slots:
        return None
    return AdapterTable(loader, base, rank_max=most, slots=slots, clock=time.monotonic)


@contextlib.contextmanager
def sockets_in(folder: Path | None) -> Iterator[None]:
    """Makes vLLM put its sockets there and not into the host's temporary directory, where each
    killed worker would leave some for good. The sockets of the previous worker are removed."""
    if folder is None or RPC_PATH in os.environ:
        yield
        return
    shutil.rmtree(folder, ignore_errors=True)
    own_folder(folder)
    os.environ[RPC_PATH] = str(folder)
    try:
        yield
    finally:
        del os.environ[RPC_PATH]
