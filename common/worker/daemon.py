"""The shell around a worker's core: it turns sockets and the engine into events and carries out
actions.

Theory of operation: everything that happens (a dispatch, an abort, an engine batch, a lost gateway)
becomes one event into the core, on the loop's thread, and the returned actions are carried out in
order. A task of its own awaits what the engine is told (`engine_commands.py`). The engine is opened
before the loop starts and passed in. When it dies, the task `engine-events` raises and the process
ends with status 1 and that name; a supervisor starts it again, and the router places elsewhere.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable
from typing import Protocol

from msgspec.structs import replace

from common.clock import Clock
from common.config import Config, WorkerConfig
from common.engine.port import Engine
from common.errors import BatonError, Code, WireError
from common.identity import identity_of
from common.messages import (
    HOLDING_MAX,
    WIRE_VERSION,
    Abort,
    AdapterDone,
    Beat,
    CopyAhead,
    Decode,
    Drain,
    HandOver,
    Hello,
    Holding,
    Introduce,
    Leaving,
    Message,
    Move,
    OrderAdapter,
    OrderStore,
    Ping,
    Prefetch,
    Prefill,
    Refused,
    Role,
    RouterToWorker,
    Took,
    Wake,
    Welcome,
)
from common.net.endpoints import control_addresses
from common.net.wire import Decoder, decode_body
from common.process.lifecycle import Tasks
from common.security.open import open_curve
from common.telemetry.exposition import Exposition
from common.telemetry.log import Logger
from common.worker.actions import (
    AbortInEngine,
    Action,
    AddToEngine,
    CopyInEngine,
    Dispatched,
    DrainOver,
    EngineRefused,
    Event,
    FrameDropped,
    GatewayGone,
    HandOverKept,
    ToGateway,
    ToRouter,
    WorkerCore,
)
from common.worker.adapters import AdapterOrders
from common.worker.engine_commands import EngineCommands
from common.worker.engine_watch import why_hung
from common.worker.health_endpoints import HealthEndpoints
from common.worker.kv_log import LinkLog, log_handoff
from common.worker.kv_reachability import KvReachability
from common.worker.metrics import WorkerMetrics
from common.worker.router_links import RouterLink, RouterLinks

BEAT_SECONDS = 0.5
MOVE_SECONDS = 2.0
STOPPING = Leaving(reason="stopping")


class Gateways(Protocol):
    """The connections to gateways. `send` returns False if the gateway is lost or its queue is
    full."""

    def send(self, action: ToGateway) -> bool: ...

    def close(self) -> None: ...


class Worker:
    """One prefill or decode daemon, as a `common.process.lifecycle.Service`."""

    def __init__(
        self,
        config: Config,
        *,
        role: Role,
        name: str,
        incarnation: str,
        engine: Engine,
        core: WorkerCore,
        clock: Clock,
        log: Logger,
    ) -> None:
        self._config, self._clock, self._log = config, clock, log
        self._role, self._name, self._incarnation = role, name, incarnation
        self._engine, self._core = engine, core
        self._link_log = LinkLog(log, self._worker_config().kv.transports)
        self.curve = open_curve(config, log)
        self._gateways: Gateways | None = None
        self._routers: RouterLinks | None = None
        self._decoder: Decoder[RouterToWorker] = Decoder(RouterToWorker)
        self._commands = EngineCommands(
            engine,
            core,
            clock,
            warm=self._worker_config().state == "warm",
            refused=self._on_refused,
            changed=lambda: self._to_router(self._make_beat()),
        )
        self._idle = asyncio.Event()
        self._refused: asyncio.Future[Refused] = asyncio.get_running_loop().create_future()
        self._health = HealthEndpoints(engine, self._commands.put, clock, self._why_no_canary)
        self._exposition = Exposition(
            config, role, name, WorkerMetrics(core, engine), routes=self._health.routes()
        )
        self._kv_reachability = KvReachability()
        self._adapters = AdapterOrders(config.model_adapters, engine, self._report_adapter, log)
        self._draining = self._drained = self._engine_lost = self._ran = False

    def _worker_config(self) -> WorkerConfig:
        config, prefills = self._config, self._role is Role.PREFILL
        default = WorkerConfig(engine=config.engine, kv=config.kv)
        return (config.prefill if prefills else config.decode).get(self._name, default)

    @property
    def stop_seconds(self) -> float:
        return self._config.fleet.drain_ms / 1000 + 6.0

    def set_gateways(self, gateways: Gateways) -> None:
        """Decode workers only; before `start`."""
        self._gateways = gateways

    async def start(self, tasks: Tasks) -> str:
        info = self._engine.info
        if self.curve is not None:
            self.curve.start()
            tasks.start("allow-list", self.curve.watch())
        self._routers = RouterLinks(
            control_addresses(self._config),
            identity_of(self._name, self._incarnation).encode(),
            hello=self._hello,
            on_frames=self._on_control,
            log=self._log,
            curve=self.curve,
        )
        await self._commands.fall_asleep()
        self._routers.start()
        await self._exposition.start(tasks)
        tasks.start("engine-events", self._pump_events())
        tasks.start("engine-commands", self._while_alive(self._commands.run()))
        tasks.start("adapters", self._adapters.run())
        tasks.start("engine-watch", self._watch_engine())
        tasks.start("engine-probe", self._while_alive(self._engine.watch()))
        tasks.start("beat", self._beat())
        tasks.start("router-refusal", self._die_if_refused())
        tasks.watchdog_and_reload.beat_while(lambda: not self._why_hung())
        capacity = info.capacity
        return (
            f"{self._role} {self._name} ready: {info.model}, {capacity.kv_blocks} KV blocks of "
            f"{capacity.block_tokens} tokens, kv {info.kv_address}"
        )

    async def stop(self) -> None:
        """Drains, then closes everything. Without an engine there is nothing to wait for, and its
        streams continue elsewhere as soon as the connections close."""
        self._draining = True
        if not self._engine_lost:
            self._to_router(STOPPING)
            await self._drain()
        await self._exposition.close()
        await self._engine.close()
        if self._gateways is not None:
            self._gateways.close()
        if self._routers is not None:
            self._routers.close()
        if self.curve is not None:
            self.curve.close()

    async def _drain(self) -> None:
        """Lets requests finish. Before the limit, those that have not finished are moved
        elsewhere."""
        limit = self._config.fleet.drain_ms / 1000
        move = min(MOVE_SECONDS, limit / 2)
        if await self._is_idle_within(limit - move):
            return
        left = self._core.active
        sentence = f"{left} requests were still running near the end of the drain time"
        self._log.info("requests.moved", active=left, sentence=f"{sentence}: they are moved")
        self.handle(DrainOver(f"{self._role} worker {self._name} is stopping"))
        if not await self._is_idle_within(move):
            left = self._core.active
            sentence = f"{left} requests were still running when the drain time ended"
            self._log.warning("drain.expired", active=left, sentence=sentence)

    async def _is_idle_within(self, seconds: float) -> bool:
        if not self._core.active:
            return True
        self._idle.clear()
        try:
            async with asyncio.timeout(seconds):
                await self._idle.wait()
        except TimeoutError:
            return False
        return True

    def handle(self, event: Event) -> None:
        """Handles one event and carries out its actions, on the loop's thread only."""
        for action in self._core.handle(event, self._clock.monotonic()):
            self._carry_out(action)
        if not self._core.active:
            self._idle.set()

    def _carry_out(self, action: Action) -> None:
        match action:
            case AddToEngine() | AbortInEngine() | HandOverKept() | CopyInEngine():
                self._commands.put(action)
            case ToRouter():
                self._to_router(action.message)
            case ToGateway():
                taken = self._gateways is not None and self._gateways.send(action)
                if not taken:
                    self.handle(GatewayGone(action.gateway, action.incarnation, "stream is full"))

    def _to_router(self, message: Message) -> None:
        if self._routers is not None:
            self._routers.broadcast(message)

    def _hello(self) -> list[Message]:
        info = self._engine.info
        hello = Hello(
            wire_version=WIRE_VERSION,
            role=self._role,
            name=self._name,
            incarnation=self._incarnation,
            pid=os.getpid(),
            fingerprint=info.fingerprint,
            fingerprint_parts=info.fingerprint_parts,
            model=info.model,
            kv_address=info.kv_address,
            capacity=info.capacity,
            adapters=self._engine.adapters(),
        )
        return [hello, STOPPING] if self._draining else [hello]

    def _on_control(self, link: RouterLink, frames: list[bytes]) -> None:
        try:
            message = self._decoder.decode(frames[0])
            if isinstance(message, Prefill | Decode):
                if len(frames) != 2:
                    raise WireError(f"{type(message).__name__} came without its body")
                self.handle(Dispatched(message, decode_body(frames[1])))
                self._announce_attempt(link, message)
            elif isinstance(message, Abort | Move | CopyAhead | HandOver):
                self.handle(message)
            elif isinstance(message, Wake | OrderStore | Prefetch):
                self._commands.put(message)
            elif isinstance(message, OrderAdapter):
                self._adapters.order(message)
            elif isinstance(message, Drain):
                self._drained = message.on
                self._to_router(self._make_beat())
            elif isinstance(message, Introduce):
                if message.prefill:
                    self._kv_reachability.add(
                        message.prefill, message.kv_address, self._clock.monotonic()
                    )
                self._engine.connect_kv(message.kv_address)
            else:
                self._on_link(link, message)
        except WireError as error:
            self.handle(FrameDropped(error.message))
            self._log.warning("frame.dropped", sentence=error.message)

    def _announce_attempt(self, link: RouterLink, message: Prefill | Decode) -> None:
        held = self._core.held_attempt(message.request_id, message.attempt)
        if self._routers is not None and held is not None:
            self._routers.broadcast(Took(held=held), except_for=link)

    def _on_link(self, link: RouterLink, message: Welcome | Refused | Ping) -> None:
        match message:
            case Welcome():
                self._log.info("router.welcomed", router=message.name)
                held = self._core.held_attempts()
                attempts = tuple(held[:HOLDING_MAX])
                link.welcomed()
                link.send(Holding(attempts=attempts, complete=len(attempts) == len(held)))
                link.send(self._make_beat())
                if self._draining:
                    link.send(STOPPING)
                self._send_prefix_deltas(whole=True)
            case Refused():
                if not self._refused.done():
                    self._refused.set_result(message)

    async def _die_if_refused(self) -> None:
        refused = await self._refused
        raise BatonError(Code.WIRE_MISMATCH, f"the router refused this worker: {refused.message}")

    async def _pump_events(self) -> None:
        while True:
            try:
                batch = await self._engine.next_batch()
            except BatonError:
                self._engine_lost = True
                raise
            for done in batch.kv_done:
                log_handoff(self._log, done)
            self.handle(self._health.canary.batch_without_own(batch))

    async def _while_alive(self, work: Awaitable[None]) -> None:
        """What this raises tells that the engine is lost."""
        try:
            await work
        except BatonError:
            self._engine_lost = True
            raise

    def _on_refused(self, refused: EngineRefused) -> None:
        if not self._health.canary.on_refused(refused.request_id, refused.message):
            self.handle(refused)

    def _why_hung(self) -> str:
        config, load = self._worker_config(), self._engine.load()
        self._ran = load.step_age_ms > 0 and (self._ran or load.running > 0)
        return why_hung(load, config.engine.hang_ms, config.kv.load_timeout_ms, ran=self._ran)

    async def _watch_engine(self) -> None:
        """Raises when the engine hangs, which ends the process."""
        while True:
            await asyncio.sleep(BEAT_SECONDS)
            sentence = self._why_hung()
            if sentence:
                self._engine_lost = True
                raise BatonError(Code.ENGINE_FAILED, sentence)

    async def _beat(self) -> None:
        while True:
            self._to_router(self._make_beat())
            self._send_prefix_deltas(whole=False)
            await asyncio.sleep(BEAT_SECONDS)

    def _send_prefix_deltas(self, *, whole: bool) -> None:
        for delta in self._engine.prefix_cache_delta(whole=whole):
            self._to_router(delta)

    def _report_adapter(self, done: AdapterDone) -> None:
        self._to_router(self._make_beat())
        self._to_router(done)

    def _make_beat(self) -> Beat:
        load = self._health.canary.load_without_own(
            self._engine.load(), empty=not self._core.active
        )
        verdict, warm = self._health.verdict(), self._commands.warm_state
        adapters = self._engine.adapters()
        beat = Beat(
            load=load, drained=self._drained, health_verdict=verdict, warm=warm, adapters=adapters
        )
        status = self._engine.kv_status()
        if status is None:
            return beat
        self._link_log.update(status)
        now = self._clock.monotonic()
        for address in self._kv_reachability.due(status.linked, now):
            self._engine.connect_kv(address)
        return replace(
            beat,
            kv_unreachable=self._kv_reachability.unreachable(now),
            kv_counts=status.counts,
            kv_holds=status.holds,
            kv_holds_total=status.holds_total,
            kv_checkpoints=status.checkpoints,
        )

    def _why_no_canary(self) -> str:
        if self._draining:
            return "it is stopping"
        if self._commands.asleep:
            return "it sleeps until its model needs it"
        return "an operator drains it" if self._drained else ""
