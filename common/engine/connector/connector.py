"""The KV connector that vLLM loads (`kv_connector_module_path`), on top of `common.kv`.

Theory of operation: vLLM makes one instance per role. With executor `uni` both are in the
EngineCore process; with tensor parallelism there is a worker instance in the process of each rank.
The scheduler instance also ties the process to its daemon: the process dies when the daemon is
killed, and leaves Ctrl-C to the daemon. The worker instance starts the KV thread once the KV cache
exists. That is after the fork, which UCX and ZeroMQ would not survive.
"""

from __future__ import annotations

import ctypes
import os
import signal
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import msgspec
from vllm.distributed.kv_transfer import get_kv_transfer_group, has_kv_transfer_group
from vllm.distributed.kv_transfer.kv_connector.v1.base import (
    KVConnectorBase_V1,
    KVConnectorMetadata,
    KVConnectorRole,
    KVConnectorTransferResults,
    KVConnectorWorkerMetadata,
    SupportsHMA,
)
from vllm.distributed.parallel_state import get_tensor_model_parallel_rank
from vllm.v1.request import RequestStatus

from common.engine.connector.canonical import CanonicalForms, canonical_forms, form_of
from common.engine.connector.engine_pool import EnginePool
from common.engine.connector.grammar import replay_emitted
from common.engine.connector.memory import (
    block_bytes,
    kv_groups,
    kv_memory,
    layers_of_pages,
    marker,
)
from common.engine.connector.metadata import StepPlan
from common.engine.connector.scheduler import SchedulerHalf
from common.engine.connector.setup import Setup
from common.engine.connector.store import StoreScheduler
from common.engine.connector.store_setup import make_store, store_size
from common.engine.connector.worker import LayerProgress, WorkerHalf
from common.engine.speculation.draft_layers import without_draft_layers
from common.errors import ConfigError
from common.kv.handoff.parts import Rank
from common.kv.layout import KvMemory
from common.kv.peers.channel import WorkerIdentity
from common.kv.plan import DEFAULT_LAYER_GROUPS_MAX
from common.kv.service import KvService
from common.kv.store.results import StoreResults, StoreSize
from common.kv.store.table import StoreTable

if TYPE_CHECKING:
    import torch
    from vllm.config import VllmConfig
    from vllm.distributed.kv_events import KVCacheEvent
    from vllm.v1.core.block_pool import BlockPool
    from vllm.v1.core.kv_cache_manager import KVCacheBlocks
    from vllm.v1.core.sched.output import SchedulerOutput
    from vllm.v1.kv_cache_interface import KVCacheConfig
    from vllm.v1.kv_cache_layout import KVCacheLayout
    from vllm.v1.outputs import KVConnectorOutput
    from vllm.v1.request import Request

PR_SET_PDEATHSIG = 1


class StepMetadata(KVConnectorMetadata):
    """The plan of one step, in the form in which vLLM passes it on."""

    def __init__(self, plan: StepPlan) -> None:
        self.plan = plan


class StepReport(KVConnectorWorkerMetadata):
    """What the ranks did for the store, in the form in which vLLM brings it to the scheduler."""

    def __init__(self, results: StoreResults) -> None:
        self.results = results

    def aggregate(self, other: KVConnectorWorkerMetadata) -> StepReport:
        assert isinstance(other, StepReport)
        return StepReport(self.results.joined(other.results))


class BatonConnector(KVConnectorBase_V1, SupportsHMA):
    """Both halves. Each instance uses the one of its role."""

    def __init__(
        self, vllm_config: VllmConfig, role: KVConnectorRole, kv_cache_config: KVCacheConfig
    ) -> None:
        extra = vllm_config.kv_transfer_config.kv_connector_extra_config
        self._setup = msgspec.convert(extra["baton"], Setup)
        if not self._setup.draft_layers:
            kv_cache_config = without_draft_layers(vllm_config, kv_cache_config)
        super().__init__(vllm_config, role, kv_cache_config)
        self._groups = kv_groups(kv_cache_config, vllm_config.max_in_flight_tokens)
        self._scheduler: SchedulerHalf | None = None
        self._store: StoreScheduler | None = None
        self._worker: WorkerHalf | None = None
        self._service: KvService | None = None
        if role is KVConnectorRole.SCHEDULER:
            _tie_to_daemon(self._setup.daemon_pid)
            made = vllm_config, kv_cache_config, self._groups, self._setup
            self._store = make_store(*made, _share)
            self._scheduler = SchedulerHalf(self._groups, self._store)

    # ------------------------------------------------------------ worker

    def register_kv_caches(self, kv_caches: dict[str, torch.Tensor]) -> None:
        setup, config = self._setup, self._kv_cache_config
        layout = self._vllm_config.cache_config.get_resolved_kv_cache_layout()
        memory = kv_memory(kv_caches, config, layout)
        rank = Rank(get_tensor_model_parallel_rank(), len(setup.side_addresses))
        canonical = self._canonical_forms(kv_caches, layout, memory)
        named = setup.name, setup.incarnation, setup.fingerprint
        form = form_of(setup, canonical)
        identity = WorkerIdentity(*named, rank, setup.kv_secrets_file, form)
        port = setup.kv.port + rank.number if setup.kv.port else 0
        layers = layers_of_pages(config, memory.geometry.layers)
        groups = setup.kv.layer_groups or DEFAULT_LAYER_GROUPS_MAX
        clock = LayerProgress(layers, -(-len(layers) // groups)) if groups > 1 else None
        kv = msgspec.structs.replace(setup.kv, port=port)
        size = store_size(
            self._vllm_config, self._kv_cache_config, self._groups, setup, rank.number
        )
        self._service = KvService(
            identity,
            kv,
            memory,
            setup.side_addresses[rank.number],
            groups=self._groups,
            store=size if isinstance(size, StoreSize) else None,
            canonical=canonical.by_wire if canonical is not None else {},
        )
        self._service.start()
        self._worker = WorkerHalf(self._service, marker(kv_caches), clock)

    def _canonical_forms(
        self, kv_caches: dict[str, torch.Tensor], layout: KVCacheLayout, whole: KvMemory
    ) -> CanonicalForms | None:
        """Those of the model's layers alone, so that workers which have not the same drafter hand
        those over. `whole`: the memory of all layers."""
        made = self._vllm_config
        try:
            config = without_draft_layers(made, self._kv_cache_config)
        except ConfigError:  # the drafter's layers cannot be told from the model's
            return None
        memory = kv_memory(kv_caches, config, layout, beside=whole)
        laid_out = made, config, kv_caches, self._groups, memory
        return canonical_forms(*laid_out, converts=self._setup.kv.may_lose)

    def bind_connector_metadata(self, connector_metadata: StepMetadata) -> None:
        """vLLM calls this before every forward pass, which it does not with `start_load_kv`."""
        super().bind_connector_metadata(connector_metadata)
        if self._worker is not None:
            self._worker.begin(connector_metadata.plan)

    def handle_preemptions(self, kv_connector_metadata: StepMetadata) -> None:
        if self._worker is not None:
            self._worker.preempted(kv_connector_metadata.plan)

    def start_load_kv(self, forward_context: Any, **kwargs: Any) -> None:  # noqa: ARG002
        if self._worker is not None:
            self._worker.load(self._step_plan())

    def wait_for_layer_load(self, layer_name: str) -> None:
        """Nothing to wait for: loads are asynchronous, between steps."""

    def save_kv_layer(
        self,
        layer_name: str,
        kv_layer: torch.Tensor,  # noqa: ARG002
        attn_metadata: Any,  # noqa: ARG002
        **kwargs: Any,  # noqa: ARG002
    ) -> None:
        if self._worker is not None:
            self._worker.layer_saved(self._step_plan(), layer_name)

    def wait_for_save(self) -> None:
        if self._worker is not None:
            self._worker.computed(self._step_plan())

    def get_transfer_results(self, finished_req_ids: set[str]) -> KVConnectorTransferResults:
        if self._worker is None:
            return KVConnectorTransferResults()
        sent, received, failed = self._worker.results(self._step_plan(), finished_req_ids)
        return KVConnectorTransferResults(
            finished_sending=sent, finished_recving=received, failed_recving=failed
        )

    def build_connector_worker_meta(self) -> KVConnectorWorkerMetadata | None:
        results = self._worker.store_results() if self._worker is not None else None
        return StepReport(results) if results else None

    def _step_plan(self) -> StepPlan:
        metadata = self._get_connector_metadata()
        assert isinstance(metadata, StepMetadata)
        return metadata.plan

    # ------------------------------------------------------------ scheduler

    def bind_gpu_block_pool(self, gpu_block_pool: BlockPool) -> None:
        if self._store is not None:
            pool = EnginePool(gpu_block_pool)
            self._store.bind_pool(pool, block_bytes(self._kv_cache_config))

    def on_new_request(self, request: Request) -> None:
        if self._scheduler is not None:
            self._scheduler.new_request(request)
            replay_emitted(request)

    def get_num_new_matched_tokens(
        self, request: Request, num_computed_tokens: int
    ) -> tuple[int | None, bool]:
        if self._scheduler is None:
            return 0, False
        tokens = self._scheduler.matched_tokens(request, num_computed_tokens)
        return tokens, tokens > 0

    def update_state_after_alloc(
        self, request: Request, blocks: KVCacheBlocks, num_external_tokens: int
    ) -> None:
        if self._scheduler is not None:
            self._scheduler.allocated(request, blocks, num_external_tokens)

    def build_connector_meta(self, scheduler_output: SchedulerOutput) -> KVConnectorMetadata:
        plan = self._scheduler.step(scheduler_output) if self._scheduler else StepPlan()
        return StepMetadata(plan)

    def update_connector_output(self, connector_output: KVConnectorOutput) -> None:
        if self._scheduler is not None:
            report = connector_output.kv_connector_worker_meta
            self._scheduler.copies_ended(
                report.results if isinstance(report, StepReport) else StoreResults(),
                connector_output.finished_recving or (),
                connector_output.failed_recving,
            )

    def request_finished_all_groups(
        self,
        request: Request,
        block_ids: tuple[list[int], ...],
    ) -> tuple[bool, dict[str, Any] | None]:
        if self._scheduler is None:
            return False, None
        aborted = request.status not in (
            RequestStatus.FINISHED_STOPPED,
            RequestStatus.FINISHED_LENGTH_CAPPED,
        )
        return self._scheduler.finished(request, block_ids, aborted=aborted), None

    def take_events(self) -> Iterable[KVCacheEvent]:
        return self._scheduler.store_events() if self._scheduler is not None else ()

    def share_store(self, table: StoreTable, on_disk: StoreTable | None) -> None:
        """Other workers may pull what these tables hold. Of the worker instance."""
        if self._service is not None:
            self._service.share_store(table, on_disk)

    def has_pending_push_work(self) -> bool:
        return self._scheduler is not None and self._scheduler.pending

    def shutdown(self) -> None:
        if self._service is not None:
            self._service.stop()


def _share(table: StoreTable, on_disk: StoreTable | None) -> bool:
    """Gives the tables to the KV thread. False if that is in another process, with tensor
    parallelism."""
    worker = get_kv_transfer_group() if has_kv_transfer_group() else None
    if not isinstance(worker, BatonConnector):
        return False
    worker.share_store(table, on_disk)
    return True


def _tie_to_daemon(daemon_pid: int) -> None:
    """Makes this process die with the daemon (PR_SET_PDEATHSIG) and ignore Ctrl-C, which the daemon
    handles."""
    libc = ctypes.CDLL(None, use_errno=True)
    if os.getpid() != daemon_pid:
        libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        if os.getppid() != daemon_pid:
            os.kill(os.getpid(), signal.SIGKILL)
        signal.signal(signal.SIGINT, signal.SIG_IGN)
