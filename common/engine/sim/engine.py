"""The simulated engine: modelled time, and real bytes through the real KV layer. It never infers.

Theory of operation: `SimCore` decides; this shell waits and moves KV. Steps run inside
`next_batch`, which a worker always awaits, so the engine needs no task of its own. An idle engine
waits for one event that `add`, `abort`, `leave` and the KV thread set.
"""

from __future__ import annotations

import asyncio
import json
import os
import time
from collections.abc import Callable, Iterable
from pathlib import Path

import numpy as np
import structlog

from common.blocks import blocks_for
from common.config import Config
from common.engine.adapters import Adapter, AdapterTable, resident_max
from common.engine.fingerprint import fingerprint_of, parts_of
from common.engine.port import Batch, EngineInfo, EngineRequest, engine_key, pooling_of
from common.engine.sim.model import SimKv, not_modelled
from common.engine.sim.scheduler import SimCore, SimRequest
from common.errors import BatonError, Code
from common.identity import AttemptKey
from common.kv.layout import Geometry, HostMemory
from common.kv.messages import KvDone, KvStatus
from common.kv.peers.channel import WorkerIdentity
from common.kv.service import KvService
from common.messages import (
    WIRE_VERSION,
    AdapterStatus,
    Capacity,
    CopyAhead,
    Load,
    OrderStore,
    PrefixDelta,
    Role,
    Ticket,
)
from common.model.adapters import RANK_MAX_DEFAULT
from common.model.resolve import model_folder
from common.security.open import kv_secrets_file
from common.telemetry.log import Logger
from common.telemetry.rolling_p99 import RollingP99

LAYERS = 2
BLOCK_TOKENS = 128
MODEL_LEN = 8192


class SimEngine:
    """Made by `open_sim`; used on one loop."""

    def __init__(
        self,
        info: EngineInfo,
        core: SimCore,
        service: KvService,
        wake: _Wake,
        clock: Callable[[], float] = time.monotonic,
        *,
        adapters: AdapterTable,
    ) -> None:
        self._info = info
        self._adapters = adapters
        self._core = core
        self._service = service
        self._wake = wake
        self._clock = clock
        self._step_due: float | None = None
        self._steps = RollingP99()
        #: Streams that end with the step that runs.
        self._leaving: list[AttemptKey] = []
        self._closed = False
        self._asleep = False

    @property
    def info(self) -> EngineInfo:
        return self._info

    def load(self) -> Load:
        core = self._core
        late = self._clock() - self._step_due if self._step_due is not None else 0.0
        return Load(
            running=core.running,
            waiting=core.waiting,
            kv_used=core.kv_used,
            step_age_ms=max(0.0, late) * 1000,
            step_ms_p99=self._steps.p99_ms(),
        )

    async def add(self, request: EngineRequest) -> None:
        self._alive()
        if self._asleep:
            raise BatonError(Code.ENGINE_FAILED, "a request came to an engine that sleeps")
        if self._core.get(request.key) is not None:
            raise BatonError(Code.DUPLICATE_REQUEST, f"{request.key} is already in the engine")
        capacity = self._info.capacity
        if not request.prompt_ids:
            raise BatonError(Code.INVALID_REQUEST, "the prompt is empty")
        self._info.check(request)
        if self._core.blocks_needed(request) > capacity.kv_blocks:
            raise BatonError(
                Code.CONTEXT_LENGTH_EXCEEDED, "the request needs more KV blocks than there are"
            )
        beyond = not_modelled(request.sampling)
        if beyond:
            raise BatonError(
                Code.UNSUPPORTED_PARAMETER,
                f"the simulated engine does not model {beyond}; use engine.kind = 'vllm'",
                param=beyond,
            )
        if request.adapter:
            await self._adapters.use(request.adapter, request.key)
        self._core.add(request)
        self._wake.set()

    async def abort(self, request_id: str, attempt: int) -> None:
        key = engine_key(request_id, attempt)
        self._adapters.release(key)
        self._core.abort(key)
        self._service.release((request_id, attempt), "aborted by the daemon")
        self._wake.set()

    def leave(self, request_id: str, attempt: int) -> None:
        self._leaving.append((request_id, attempt))
        self._wake.set()

    def adapters(self) -> tuple[AdapterStatus, ...]:
        return self._adapters.statuses()

    async def load_adapter(self, name: str, path: str) -> None:
        await self._adapters.add(name, path)

    async def unload_adapter(self, name: str) -> None:
        await self._adapters.remove(name)

    def hand_over(self, ticket: Ticket, kept_attempt: int) -> None:
        self._service.hand_over(ticket, kept_attempt)

    def prefetch(self, request: EngineRequest) -> None:
        """It has no store."""

    def copy_ahead(self, order: CopyAhead) -> None:
        """Nothing, because this engine has no store, and routers give it no such order."""

    def connect_kv(self, kv_address: str) -> None:
        """On D, begins to connect to this P's KV listener. Never waits."""
        self._service.connect(kv_address)

    def order_store(self, order: OrderStore) -> None:
        """A simulated engine has no store."""

    def kv_status(self) -> KvStatus | None:
        return self._service.status

    def prefix_cache_delta(self, *, whole: bool) -> Iterable[PrefixDelta]:
        """Always empty, because this engine has no prefix cache."""
        del whole
        return ()

    async def sleep(self) -> bool:
        """It has no memory to give back; it only takes nothing until it is woken."""
        self._asleep = not self._core.kv_used and not self._core.running and not self._core.waiting
        return self._asleep

    async def wake(self) -> None:
        self._asleep = False

    async def next_batch(self) -> Batch:
        self._wake.attach()
        while True:
            self._alive()
            done, left = self._handoffs(), self._left()
            if done or left:
                return Batch(kv_done=done, left=left, load=self.load())
            for begun in self._core.admit():
                self._begin(begun)
            if self._core.plan_step():
                await self._step()
                outputs, grown = self._core.finish_step()
                for output in outputs:
                    if output.finish_reason or output.error:
                        self._adapters.release(output.key)
                for sim_request in grown:
                    self._progress(sim_request)
                done, left = self._handoffs(), self._left()
                if outputs or done or left:
                    drafts = self._core.take_drafts()
                    return Batch(outputs, done, left, load=self.load(), drafts=drafts)
            else:
                await self._wake.wait()

    async def watch(self) -> None:
        """Waits for ever: the engine is in this process and needs no probe."""
        await asyncio.Event().wait()

    async def close(self) -> None:
        if not self._closed:
            self._closed = True
            await asyncio.to_thread(self._service.stop)

    async def _step(self) -> None:
        seconds = self._core.step_seconds()
        self._step_due = self._clock() + seconds
        self._steps.add(seconds)
        try:
            await asyncio.sleep(seconds)
        finally:
            self._step_due = None

    def _begin(self, sim_request: SimRequest) -> None:
        ticket = sim_request.request.ticket
        if ticket is None:
            return
        if sim_request.sends:
            self._service.offer(ticket, self._core.prompt_blocks(sim_request.request))
        else:
            tokens = len(sim_request.request.prompt_ids) - 1
            blocks = blocks_for(tokens, self._info.capacity.block_tokens)
            self._service.fetch(ticket, 0, sim_request.blocks[:blocks])

    def _progress(self, sim_request: SimRequest) -> None:
        key = (sim_request.request.request_id, sim_request.request.attempt)
        blocks = sim_request.blocks[: self._core.prompt_blocks(sim_request.request)]
        computed = self._core.computed_blocks(sim_request)
        self._service.progress(key, blocks, computed, ended=computed == len(blocks))

    def _handoffs(self) -> list[KvDone]:
        done = self._service.drain()
        for end in done:
            key = engine_key(end.request_id, end.attempt)
            self._core.handoff_ended(key, failed=bool(end.error))
        return done

    def _left(self) -> list[str]:
        """The streams that leave now; what ended or was aborted meanwhile is none of them."""
        leaving, self._leaving = self._leaving, []
        left = []
        for attempt in leaving:
            key = engine_key(*attempt)
            blocks = self._core.keep(key)
            if blocks is not None:
                self._adapters.release(key)
                self._service.keep(attempt, blocks)
                left.append(key)
        return left

    def _alive(self) -> None:
        if self._closed:
            raise BatonError(Code.ENGINE_FAILED, "the simulated engine is closed")


class _NoLoading:
    """An `AdapterLoader` that has nothing to load."""

    async def load(self, adapter: Adapter) -> None:
        del adapter

    async def unload(self, adapter: Adapter) -> None:
        del adapter


class _Wake:
    """An event that other threads may set. It belongs to the loop that attached it."""

    def __init__(self) -> None:
        self._loop: asyncio.AbstractEventLoop | None = None
        self._event = asyncio.Event()

    def attach(self) -> None:
        self._loop = asyncio.get_running_loop()

    def set(self) -> None:
        self._event.set()

    def set_from_thread(self) -> None:
        if self._loop is not None and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._event.set)

    async def wait(self) -> None:
        await self._event.wait()
        self._event.clear()


def open_sim(config: Config, role: Role, name: str, incarnation: str) -> SimEngine:
    """Raises BatonError if the KV listener cannot be set up."""
    worker = config.worker(role, name)
    sim = worker.engine.sim
    block_tokens = worker.engine.block_tokens or BLOCK_TOKENS
    layers = LAYERS if sim.kv_block_bytes % (8 * LAYERS) == 0 else 1
    page = sim.kv_block_bytes // layers
    geometry = Geometry(layers, sim.kv_blocks, page, page * sim.kv_blocks, page)
    memory = HostMemory(np.zeros(sim.kv_blocks * sim.kv_block_bytes, np.uint8), geometry)
    max_model_len = config.model.max_model_len or _model_len(config)
    parts = parts_of(
        {
            "engine": "sim",
            "wire": WIRE_VERSION,
            "model": config.model.served_name,
            "block_tokens": block_tokens,
            "layers": layers,
            "page_bytes": page,
        }
    )
    fingerprint = fingerprint_of(parts)
    if worker.kv.store.ram_mib:
        log: Logger = structlog.get_logger("baton")
        log.warning("store.off", sentence="KV of ended requests is not stored: simulated engine")
    wake = _Wake()
    service = KvService(
        WorkerIdentity(
            name, incarnation, fingerprint, secrets_file=kv_secrets_file(config, worker.kv)
        ),
        worker.kv.by_block(),
        memory,
        on_ended=wake.set_from_thread,
    )
    kv_address = service.start()
    speculation, arguments = worker.speculation, worker.engine.args
    core = SimCore(
        sim,
        SimKv(memory, block_tokens),
        block_tokens,
        worker.engine.max_num_seqs,
        worker.engine.max_num_batched_tokens,
        draft_tokens=speculation.step_tokens - 1,
    )
    capacity = Capacity(
        block_tokens=block_tokens,
        kv_blocks=sim.kv_blocks,
        kv_block_bytes=page * layers,
        max_model_len=max_model_len,
        max_num_seqs=worker.engine.max_num_seqs,
        restores=True,
    )
    info = EngineInfo(
        config.model.served_name,
        fingerprint,
        kv_address,
        capacity,
        parts,
        pooling_of(config.model),
        speculation="" if speculation.method == "none" else speculation.method,
        drafter_cold=speculation.cold_after,
        step_tokens=speculation.step_tokens,
    )
    adapters = AdapterTable(
        _NoLoading(),
        _model_files(config),
        rank_max=arguments.get("max_lora_rank", RANK_MAX_DEFAULT),
        slots=resident_max(arguments, len(config.model_adapters)),
        clock=time.monotonic,
    )
    return SimEngine(info, core, service, wake, adapters=adapters)


def _model_files(config: Config) -> Path:
    """An empty folder's name where the model has no files, which this engine does not need."""
    try:
        return model_folder(config)
    except BatonError:
        return Path(os.devnull)


def _model_len(config: Config) -> int:
    """The limit in the model's own configuration; `MODEL_LEN` if there is none."""
    try:
        text = (model_folder(config) / "config.json").read_text(encoding="utf-8")
    except (BatonError, OSError):
        return MODEL_LEN
    return int(json.loads(text).get("max_position_embeddings", MODEL_LEN))
