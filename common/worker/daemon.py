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
from collections.abc import Awaitable, Mapping
from typing import Protocol

from msgspec.structs import replace

from common.clock import Clock
from common.config import Config, WorkerConfig
from common.engine.port import Engine
from common.errors import BatonError, Code, WireError
from common.identity import identity_of
from common.messages import (
    HOLDING_MAX,
    Abort,
    AdapterDone,
    Beat,
    Become,
    CopyAhead,
    Decode,
    Drain,
    GrantKv,
    HandOver,
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
    Dispatched,
    DrainOver,
    EngineRefused,
    Event,
    FrameDropped,
    GatewayGone,
    ToGateway,
    ToRouter,
    WorkerCore,
)
from common.worker.adapters import AdapterOrders
from common.worker.draining import Draining
from common.worker.engine_commands import EngineCommands
from common.worker.engine_watch import why_hung
from common.worker.health_endpoints import HealthEndpoints
from common.worker.hello import make_hello
from common.worker.kv_log import LinkLog, log_handoff
from common.worker.kv_reachability import KvReachability
from common.worker.metrics import WorkerMetrics
from common.worker.phase_watch import PhaseWatch
from common.worker.roles import RoleCores
from common.worker.router_links import RouterLink, RouterLinks

BEAT_SECONDS = 0.5
STOPPING = Leaving(reason="stopping")


class Gateways(Protocol):
    """The connections to gateways. `send` returns False if the gateway is lost or its queue is
    full."""

    def send(self, action: ToGateway) -> bool: ...

    def close(self) -> None: ...


class Worker:
    """One prefill or decode daemon, as a `common.process.lifecycle.Service`. `role`: that of its
    table in the fleet file. `cores`: one for each role that it may take."""

    def __init__(
        self,
        config: Config,
        *,
        role: Role,
        name: str,
        incarnation: str,
        engine: Engine,
        cores: Mapping[Role, WorkerCore],
        clock: Clock,
        log: Logger,
    ) -> None:
        self._config, self._clock, self._log = config, clock, log
        self._role, self._name, self._incarnation = role, name, incarnation
        own, self._engine = self._worker_config(), engine
        warm, mixed = own.state == "warm", own.role == "mixed"
        self._core = core = RoleCores(cores, role, clock.monotonic(), warm=warm, mixed=mixed)
        self._depth, self._phases = 0, PhaseWatch(engine, clock, log)
        self._link_log = LinkLog(log, own.kv.transports)
        self.curve = open_curve(config, log)
        self._gateways: Gateways | None = None
        self._routers: RouterLinks | None = None
        self._decoder: Decoder[RouterToWorker] = Decoder(RouterToWorker)
        self._commands = EngineCommands(
            engine,
            core,
            clock,
            warm=warm,
            refused=self._on_refused,
            changed=lambda: self._to_router(self._make_beat()),
        )
        self._drain = Draining(core, log)
        self._refused: asyncio.Future[Refused] = asyncio.get_running_loop().create_future()
        self._health = HealthEndpoints(engine, self._commands.put, clock, self._why_no_canary)
        metrics = WorkerMetrics(core, engine, self._phases)
        self._exposition = Exposition(config, role, name, metrics, routes=self._health.routes())
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
        """Before `start`. Only the decode core sends to them."""
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
        tasks.start("gpu", self._phases.watch_gpu(), ends=True)
        tasks.start("router-refusal", self._die_if_refused())
        tasks.watchdog_and_reload.beat_while(lambda: not self._why_hung())
        capacity = info.capacity
        return (
            f"{self._core.role} {self._name} ready: {info.model}, {capacity.kv_blocks} KV blocks "
            f"of {capacity.block_tokens} tokens, kv {info.kv_address}"
        )

    async def stop(self) -> None:
        """Drains, then closes everything. Without an engine there is nothing to wait for, and its
        streams continue elsewhere as soon as the connections close."""
        self._draining = True
        if not self._engine_lost:
            self._to_router(STOPPING)
            await self._drain.run(self._config.fleet.drain_ms / 1000, self._give_up)
        await self._exposition.close()
        await self._engine.close()
        if self._gateways is not None:
            self._gateways.close()
        if self._routers is not None:
            self._routers.close()
        if self.curve is not None:
            self.curve.close()

    def _give_up(self, at_once: bool) -> None:
        reason = f"{self._core.role} worker {self._name} is stopping"
        self.handle(DrainOver(reason, at_once))

    def handle(self, event: Event) -> None:
        """Handles one event and carries out its actions, on the loop's thread only. An action may
        bring another event, which is handled before the next action."""
        self._depth += 1
        for action in self._core.handle(event, self._clock.monotonic()):
            self._carry_out(action)
        self._depth -= 1
        self._drain.look()
        if self._depth or self._draining:
            return
        if self._core.change(self._clock.monotonic()):
            self._announce_role()

    def _announce_role(self) -> None:
        self._kv_reachability = KvReachability()
        sentence = f"{self._name} holds nothing and takes the role {self._core.role} by an order"
        self._log.info("role.changed", epoch=self._core.epoch, sentence=sentence)
        if self._routers is not None:
            self._routers.greet()

    def _carry_out(self, action: Action) -> None:
        match action:
            case ToRouter():
                self._to_router(action.message)
            case ToGateway():
                taken = self._gateways is not None and self._gateways.send(action)
                if not taken:
                    self.handle(GatewayGone(action.gateway, action.incarnation, "stream is full"))
            case _:
                self._phases.told(action)
                self._commands.put(action)

    def _to_router(self, message: Message) -> None:
        if self._routers is not None:
            self._routers.broadcast(message)

    def _hello(self) -> list[Message]:
        now = self._clock.monotonic()
        hello = make_hello(self._engine, self._name, self._incarnation, self._core, now)
        return [hello, STOPPING] if self._draining else [hello]

    def _on_control(self, link: RouterLink, frames: list[bytes]) -> None:
        try:
            message = self._decoder.decode(frames[0])
            if isinstance(message, Prefill | Decode):
                if len(frames) != 2:
                    raise WireError(f"{type(message).__name__} came without its body")
                self.handle(Dispatched(message, decode_body(frames[1])))
                self._announce_attempt(link, message)
            elif isinstance(message, Abort | Move | CopyAhead | GrantKv | HandOver):
                self.handle(message)
            elif isinstance(message, Wake | OrderStore | Prefetch):
                self._commands.put(message)
            elif isinstance(message, OrderAdapter):
                self._adapters.order(message)
            elif isinstance(message, Drain | Become):
                self._take_order(message)
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

    def _take_order(self, message: Drain | Become) -> None:
        """All routers are told at once. One that stops has no other role before it."""
        if isinstance(message, Drain):
            self._drained = message.on
        elif not self._draining:
            self.handle(message)
        self._to_router(self._make_beat())

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
            own = self._health.canary.batch_without_own(batch)
            self.handle(self._phases.stepped(own))

    async def _while_alive(self, work: Awaitable[None]) -> None:
        """What this raises tells that the engine is lost."""
        try:
            await work
        except BatonError:
            self._engine_lost = True
            raise

    def _on_refused(self, refused: EngineRefused) -> None:
        self._phases.told(AbortInEngine(refused.request_id, refused.attempt))
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
            load=load,
            drained=self._drained,
            health_verdict=verdict,
            warm=warm,
            adapters=adapters,
            becomes=self._core.becomes,
            phases=self._phases.report(),
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
