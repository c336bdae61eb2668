"""Prefill and decode workers: the production cores in a modelled shell (`common.worker.daemon`)."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from common.engine.port import Batch, engine_key
from common.identity import identity_of, split_identity
from common.messages import (
    Abort,
    Beat,
    Become,
    CopyAhead,
    Decode,
    Drain,
    Ended,
    GrantKv,
    HandOver,
    HealthVerdict,
    Hello,
    Holding,
    Leaving,
    Message,
    Move,
    Ping,
    Prefill,
    Refused,
    Role,
    Tokens,
    Took,
    Wake,
    WarmState,
    Welcome,
)
from common.net.wire import decode_body
from common.worker.actions import (
    AbortInEngine,
    Action,
    AddToEngine,
    CopyInEngine,
    Dispatched,
    Event,
    GatewayGone,
    HandOverKept,
    LeaveEngine,
    ToGateway,
    ToRouter,
)
from common.worker.roles import RoleCores
from services.decode.core import DecodeCore
from services.decode.grant_limit import grant_limit_of
from services.prefill.core import PrefillCore
from tests.rigs.messages import hello, worker_hello
from tests.simulation.world.engines import CHUNK_MAX, BothEngines, DecodeEngine, PrefillEngine
from tests.simulation.world.models import GRANT
from tests.simulation.world.network import Connection
from tests.simulation.world.process import Dialer, Process

BEAT_SECONDS = 0.5
CONNECT_SECONDS = 1.0
WAKE_SECONDS = 0.05
WARM = "w"
STOPPING = Leaving(reason="stopping")
HELD_FRAMES_MAX = 64


class WorkerProcess(Process):
    """The cores of P and D over the modelled engine of either: the control connection to each
    router, the beat, the engine's events, the streams. `added`, `ended`: streams given to the
    engine, and those that the routers heard the end of."""

    configured: Role
    mixed = False

    def start(self) -> None:
        self.added = self.ended = self.depth = 0
        self._gateways: dict[str, StreamLink] = {}
        self.health_verdict: HealthVerdict | None = None
        self.drained = self.leaves = False
        #: A worker whose name begins with this letter is warm, and sleeps at first.
        self.warm = self.name.startswith(WARM)
        self.asleep = self.warm
        self.decode_core = DecodeCore(
            self.name,
            self.incarnation,
            grant_limit_of(self.fleet.capacity, GRANT, self.fleet.slots_ahead_max),
            step_tokens=CHUNK_MAX,
        )
        prefill_core = PrefillCore(self.name, self.incarnation, self.fleet.capacity.max_num_seqs)
        self.core = RoleCores(
            {Role.PREFILL: prefill_core, Role.DECODE: self.decode_core},
            self.configured,
            self.clock.now,
            warm=self.warm,
            mixed=self.mixed,
        )
        self._checks = (self.core, prefill_core, self.decode_core)
        self.prefill_engine = PrefillEngine(self, self.from_engine)
        self.decode_engine = DecodeEngine(self, self.from_engine)
        self._both_engines = BothEngines(self.prefill_engine, self.decode_engine)
        self._greeted: dict[str, bool] = {}
        self._welcomed: dict[str, bool] = {}
        self._routers = {
            name: Dialer(
                self,
                lambda name=name: self.fleet.router(name),  # type: ignore[misc]
                "control",
                on_up=lambda name=name: self._greet(name),  # type: ignore[misc]
                on_down=lambda name=name: self._lost_router(name),  # type: ignore[misc]
                on_message=partial(self._from_router, name),
            )
            for name in self.fleet.router_names
        }
        for dialer in self._routers.values():
            dialer.dial()
        self._beat()
        self.every(BEAT_SECONDS, self._beat)

    def handle(self, event: Event) -> None:
        """Carrying out an action may bring the next event, before the other actions."""
        self.depth += 1
        for action in self.core.handle(event, self.clock.now):
            self._carry_out(action)
        self.depth -= 1
        for core in self._checks:
            core.check_invariants()
        if self.depth:
            return
        for stream in self.decode_core._streams.values():
            if stream.leaves is not None and not self.decode_engine.leaves(stream.key):
                self.clock.violate(f"{stream.key} waits in vain to leave {self.name}")
        self.check()
        if self.core.change(self.clock.now):
            self.check()
            self.fleet.tally.took_role(self)
            for router, greeted in self._greeted.items():
                if greeted:
                    self._welcomed[router] = False
                    self._routers[router].send(self.hello())

    @property
    def role(self) -> Role:  # type: ignore[override]
        return self.core.role

    @property
    def engine(self) -> PrefillEngine | DecodeEngine | BothEngines:
        """Of the role in force."""
        if self.core.role is Role.MIXED:
            return self._both_engines
        return self.decode_engine if self.core.role is Role.DECODE else self.prefill_engine

    def check(self) -> None:
        if len(self.engine.held) > self.core.active:
            self.clock.violate(f"the engine of {self.name} works on what its core has forgotten")
        role = self.core.role
        decodes = self.decode_engine.held or self.decode_engine.kept
        if (self.prefill_engine.held and not role.prefills) or (decodes and not role.decodes):
            self.clock.violate(f"{self.name} holds what belongs to another role")
        streams = len(self.decode_core.held_attempts())
        if self.added - self.ended != streams:
            self.clock.violate(f"{self.name} said {self.ended} ends of {self.added} streams")

    def heard(self, connection: Connection, message: Message, body: bytes | None) -> None:
        raise AssertionError("nobody dials a worker")

    @property
    def model(self) -> str:
        """The name of the model that it serves."""
        return self.fleet.model_of(self.name)

    def hello(self) -> Hello:
        address = f"{self.name}:1"
        return worker_hello(
            self.role,
            self.name,
            self.incarnation,
            kv_address=address,
            capacity=self.fleet.capacity,
            model=self.model,
            configured_role=self.core.configured if self.core.can_change else None,
            role_epoch=self.core.epoch,
        )

    def _greet(self, router: str) -> None:
        self._greeted[router] = True
        self._routers[router].send(self.hello())

    def _lost_router(self, router: str) -> None:
        self._greeted[router] = self._welcomed[router] = False

    def _beat(self) -> None:
        self._to_routers(self._make_beat())
        if self.core.becomes is not None:
            self.fleet.switch_reached("emptying", self.identity)

    def _make_beat(self) -> Beat:
        return Beat(
            load=self.engine.load(),
            drained=self.drained,
            health_verdict=self.health_verdict,
            warm=WarmState(asleep=self.asleep, wake_ms=WAKE_SECONDS * 1000) if self.warm else None,
            becomes=self.core.becomes,
        )

    def _sleep(self, *, asleep: bool) -> None:
        """As `common.worker.engine_commands` does: it falls asleep only while it has nothing."""
        busy = bool(self.core.active or self.engine.held)
        if self.alive and self.asleep is not asleep and not (asleep and busy):
            self.asleep = asleep
            self.fleet.tally.slept += asleep
            self.fleet.tally.woken += not asleep
            self._beat()

    def leave(self) -> None:
        """As on SIGTERM: it tells the routers, and ends once it holds nothing."""
        self.leaves = True
        self._to_routers(STOPPING)
        self.every(BEAT_SECONDS / 10, self._end_when_empty)

    def _end_when_empty(self) -> None:
        if not (self.core.active or self.engine.held):
            self.die()

    def _to_routers(self, message: Message, *, but: str = "") -> None:
        """A router that has not welcomed this worker gets no beats yet."""
        known = self._welcomed if isinstance(message, Beat) else self._greeted
        for name, dialer in self._routers.items():
            if known.get(name) and name != but:
                dialer.send(message)

    def _from_router(  # noqa: C901 - one line for each message
        self, router: str, message: Message, body: bytes | None
    ) -> None:
        if isinstance(message, Prefill | Decode):
            assert body is not None
            self._sleep(asleep=False)
            self.dispatched(message)
            self.fleet.judge.given(self, message.request_id)
            self.handle(Dispatched(message, decode_body(body)))
            held = self.core.held_attempt(message.request_id, message.attempt)
            if held is not None:
                self._to_routers(Took(held=held), but=router)
        elif isinstance(message, Abort | Move | CopyAhead | GrantKv | HandOver):
            self.fleet.tally.moves += isinstance(message, Move)
            self.handle(message)
        elif isinstance(message, Drain):
            self.drained = message.on
            self._beat()
        elif isinstance(message, Become):
            self.handle(message)
            self.told_role()
            self._beat()
        elif isinstance(message, Wake) and message.on:
            self.clock.after(WAKE_SECONDS, partial(self._sleep, asleep=False))
        elif isinstance(message, Wake):
            self._sleep(asleep=True)
        elif isinstance(message, Welcome):
            self._welcomed[router] = True
            if self.leaves:
                self._routers[router].send(STOPPING)
            self._routers[router].send(Holding(attempts=tuple(self.core.held_attempts())))
            self._routers[router].send(self._make_beat())
        elif isinstance(message, Refused):
            self.clock.note(f"{self.identity} was refused: {message.message}")
            self.die()

    def told_role(self) -> None:
        """For the faults."""
        if self.core.becomes is not None:
            self.fleet.switch_reached("told", self.identity)

    def dispatched(self, message: Prefill | Decode) -> None:
        """For the judge."""
        if isinstance(message, Decode):
            self.fleet.tally.dispatched(message.request_id, message.attempt)

    def from_engine(self, batch: Batch) -> None:
        if self.alive:
            self.handle(batch)

    def _carry_out(self, action: Action) -> None:
        match action:
            case AddToEngine():
                self.added += action.request.role is Role.DECODE
                self.engine.add(action.request)
                self.fleet.judge.granted(self, self.engine.held[action.request.key])
            case AbortInEngine():
                key = engine_key(action.request_id, action.attempt)
                self.engine.abort(key)
            case LeaveEngine():
                self.decode_engine.leave(engine_key(action.request_id, action.attempt))
            case HandOverKept():
                self.decode_engine.hand_over(action.ticket, action.kept_attempt)
            case CopyInEngine():
                self.decode_engine.copy_ahead(action.order)
            case ToRouter():
                self.ended += isinstance(action.message, Ended)
                self._to_routers(action.message)
            case ToGateway():
                self.to_gateway(action)

    def to_gateway(self, action: ToGateway) -> None:
        identity = identity_of(action.gateway, action.incarnation)
        link = self._gateways.get(identity)
        if link is None:
            link = self._gateways[identity] = StreamLink(self, identity, self._lose, self.handle)
        if not link.send(Tokens(deltas=action.deltas)):
            self._lose(identity, "stream is full")

    def _lose(self, identity: str, reason: str) -> None:
        link = self._gateways.pop(identity, None)
        if link is not None:
            link.close()
            name, incarnation = split_identity(identity)
            self.handle(GatewayGone(name, incarnation, reason))
            streams = self.decode_core._streams.values()
            if any(stream.gateway == (name, incarnation) for stream in streams):
                self.clock.violate(f"{self.name} goes on for lost {identity}")


class PrefillProcess(WorkerProcess):
    configured = Role.PREFILL


class DecodeProcess(WorkerProcess):
    configured = Role.DECODE


class MixedProcess(DecodeProcess):
    """It begins in both roles."""

    mixed = True


class StreamLink:
    """`services.decode.links.Link`: one stream connection to one incarnation of one gateway."""

    def __init__(
        self,
        owner: WorkerProcess,
        gateway: str,
        lose: Callable[[str, str], None],
        handle: Callable[[Event], None],
    ) -> None:
        self._owner = owner
        self._gateway = gateway
        self._lose = lose
        self._handle = handle
        self._held: list[Message] = []
        self._up = False
        self._dialer = Dialer(
            owner,
            lambda: owner.fleet.processes.get(gateway),
            "stream",
            on_up=self._connected,
            on_down=lambda: lose(gateway, "its stream socket closed"),
            on_message=self._heard,
            again=False,
        )
        self._dialer.dial()
        owner.clock.after(CONNECT_SECONDS, lambda: owner.when_awake(self._timeout))

    def send(self, message: Message) -> bool:
        if self._up:
            return self._dialer.send(message)
        if len(self._held) >= HELD_FRAMES_MAX:
            return False
        self._held.append(message)
        return True

    def close(self) -> None:
        self._dialer.stop()

    def _timeout(self) -> None:
        if not self._up:
            self._lose(self._gateway, "no connection")

    def _connected(self) -> None:
        self._up = True
        owner = self._owner
        greeting = hello(Role.DECODE, owner.name, owner.incarnation)
        held, self._held = self._held, []
        for message in (greeting, *held):
            self._dialer.send(message)

    def _heard(self, message: Message, body: bytes | None) -> None:
        match message:
            case Abort():
                self._handle(message)
            case Refused():
                self._lose(self._gateway, "it refused the stream")
            case Welcome() | Ping():
                pass
