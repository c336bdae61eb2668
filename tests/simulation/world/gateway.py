"""Gateways: the production core in a modelled shell (`services.gateway.daemon` and its links), and
their clients, who compare every token with the one it must be."""

from __future__ import annotations

from typing import TYPE_CHECKING

from common.config import GatewayConfig
from common.errors import BatonError, Code
from common.messages import (
    WIRE_VERSION,
    Beat,
    Hello,
    KeptOrders,
    Message,
    Refused,
    Role,
    Sampling,
    Tokens,
    Welcome,
)
from common.net.wire import encode
from services.gateway.api.kinds import Kind, RequestSpec
from services.gateway.requests.core import Core
from services.gateway.requests.events import (
    Action,
    Closed,
    Event,
    FromRouter,
    Note,
    Opened,
    Report,
    RouterDown,
    RouterUp,
    Stepped,
    Tick,
    ToRouter,
    ToWorker,
    WorkerGone,
    WorkerUp,
)
from services.gateway.streams.answer import Ending
from services.gateway.streams.journal import Journal
from services.gateway.streams.stream import TextStream
from tests.rigs.messages import hello
from tests.simulation.world.engines import POISON, token
from tests.simulation.world.network import Connection
from tests.simulation.world.process import Dialer, Process

if TYPE_CHECKING:
    from tests.simulation.world.fleet import Fleet

MAX_STREAMS = 40
ROUTER_WAIT_MS = 1_500.0
RECOVERY_WAIT_MS = 4_000.0
TOKEN_WAIT_MS = 9_000.0
TICK = 0.2
BEAT_EVERY = 3


class Client:
    """One request as its client sees it: every token once, in order, then exactly one end."""

    def __init__(self, gateway: GatewayProcess, spec: RequestSpec) -> None:
        self.spec = spec
        self.end = ""
        self.over_at: float | None = None
        #: When it last got something, or asked.
        self.silent_since = gateway.clock.now
        #: When a router last said something of it.
        self.answered_at = 0.0
        self.gateway = gateway
        self._seen = 0

    def text(self, text: str, token_ids: list[int]) -> None:
        clock, spec = self.gateway.clock, self.spec
        if self.end:
            clock.violate(f"{spec.request_id} got text after its end ({self.end})")
        size, first = len(spec.prompt_ids), spec.prompt_ids[0]
        for got in token_ids:
            if got != token(first, size + self._seen):
                clock.violate(f"{spec.request_id} got a wrong token at {self._seen}")
            self._seen += 1
        if token_ids:
            self.silent_since = clock.now
            self.gateway.fleet.judge.spoke(self.gateway)

    def finish(self, text: str, token_ids: list[int], ending: Ending) -> None:
        self.text(text, token_ids)
        usage, wanted = ending.usage, self.spec.sampling.max_tokens
        if not self._seen == usage.completion == wanted:
            sentence = f"{self._seen} tokens and usage {usage.completion} instead of {wanted}"
            self.gateway.clock.violate(f"{self.spec.request_id} ended with {sentence}")
        self._over("finished")

    def fail(self, error: BatonError) -> None:
        innocent = self.spec.prompt_ids[0] != POISON
        if error.code is Code.INTERNAL:
            self.gateway.clock.violate(f"{self.spec.request_id}: {error.message}")
        if innocent and "quarantined" in error.message:
            self.gateway.fleet.judge.quarantined(self.spec.request_id)
        self.gateway.fleet.judge.failed(self.gateway, self, error)
        self._over(error.code.value)

    def left(self) -> None:
        self._over("left")

    def _over(self, how: str) -> None:
        if self.end:
            clock = self.gateway.clock
            clock.violate(f"{self.spec.request_id} ended twice: {self.end}, then {how}")
        self.end, self.over_at = how, self.gateway.clock.now
        self.gateway.clock.note(f"{self.spec.request_id} {how}")

    def push(self, token_ids: list[int]) -> str:
        """As a detokenizer: one character a token."""
        return "x" * len(token_ids)

    def flush(self) -> str:
        return ""


class GatewayProcess(Process):
    """`clients`: all it ever had. `speaker`: the worker whose tokens it handles just now."""

    role = Role.GATEWAY

    def __init__(self, fleet: Fleet, name: str, incarnation: int = 1) -> None:
        super().__init__(fleet, name, incarnation)
        self.clients: dict[str, Client] = {}
        self.speaker = ""
        limits = GatewayConfig(
            max_streams=MAX_STREAMS,
            router_wait_ms=ROUTER_WAIT_MS,
            recovery_ms=RECOVERY_WAIT_MS,
            token_wait_ms_max=TOKEN_WAIT_MS,
        )
        self.core = Core(limits)
        self._peers: dict[str, None] = {}
        self._up = False
        self._ticks = 0
        self._router = Dialer(
            self,
            lambda: fleet.router(fleet.router_names[0]),
            "control",
            on_up=self._greet,
            on_down=self._router_lost,
            on_message=self._from_router,
        )

    def start(self) -> None:
        self._router.dial()
        self.every(TICK, self._tick)

    def waits_for(self, identity: str) -> bool:
        """Whether this worker, which said Hello, streams something to it."""
        return identity in self._peers and identity.encode() in self.core.busy_workers()

    def open(self, spec: RequestSpec, leaves_after: float) -> Client:
        """A request comes in; its client leaves after so many seconds, 0 = never."""
        client = Client(self, spec)
        self.clients[spec.request_id] = client
        journal = Journal(spec.prompt_ids, spec.sampling.max_tokens)
        stream = TextStream(journal, spec.sampling, client, client)
        self.clock.note(f"{spec.request_id} opens at {self.name}")
        self.handle(Opened(spec, stream, client))
        if leaves_after:
            self.clock.after(leaves_after, lambda: self.when_awake(lambda: self._leave(client)))
        return client

    def handle(self, event: Event) -> list[Action]:
        actions = self.core.handle(event, self.clock.now)
        for action in actions:
            self._carry_out(action)
        self.core.check_invariants()
        return actions

    def _leave(self, client: Client) -> None:
        if client.end:
            return
        client.left()
        actions = self.handle(Closed(client.spec.request_id, "client left"))
        if self._up and not any(isinstance(action, ToRouter) for action in actions):
            self.clock.violate(f"{self.name} told nobody that {client.spec.request_id} left")

    def _keeps(self, message: KeptOrders) -> None:
        for order in message.orders:
            if self.fleet.hooks is not None:
                self.fleet.hooks.kept(self.identity, order)
            self.fleet.scale_reached("kept", "", order.worker)

    def _carry_out(self, action: Action) -> None:
        match action:
            case ToRouter(message=KeptOrders()) if self.fleet.scale.mode == "off":
                pass  # a world without such orders is the same as before there were any
            case ToRouter(message=message, body=body):
                if isinstance(message, KeptOrders):
                    self._keeps(message)
                if not self._router.send(message, None if body is None else encode(body)):
                    self._router_lost()
            case ToWorker(worker=worker, message=message):
                identity = worker.decode()
                if identity in self._peers and not self.answer("stream", identity, message):
                    self._lose(identity)
            case Report(summary=summary):
                if self._up:
                    self._router.send(summary)
            case Note():
                pass

    # ------------------------------------------------------------ router

    def _greet(self) -> None:
        endpoint = f"ipc://{self.name}"
        greeting = hello(Role.GATEWAY, self.name, self.incarnation, stream_endpoint=endpoint)
        self._router.send(greeting)

    def _from_router(self, message: Message, body: bytes | None) -> None:
        match message:
            case Welcome():
                self._router.send(self.core.live())
                if not self._up:
                    self._up = True
                    self.handle(RouterUp())
            case Refused(request_id=""):
                self.clock.note(f"{self.identity} was refused: {message.message}")
                self.die()
            case _:
                client = self.clients.get(getattr(message, "request_id", ""))
                if client is not None:
                    client.answered_at = self.clock.now
                self.handle(FromRouter(message))  # type: ignore[arg-type]

    def _router_lost(self) -> None:
        if self._up:
            self._up = False
            self.handle(RouterDown())

    # ------------------------------------------------------------ workers

    def heard(self, connection: Connection, message: Message, body: bytes | None) -> None:
        identity = connection.dialer.identity
        if isinstance(message, Hello):
            self._peers[identity] = None
            self.handle(WorkerUp(identity.encode()))
            welcome = Welcome(
                wire_version=WIRE_VERSION, name=self.name, incarnation=self.incarnation
            )
            self.answer("stream", identity, welcome)
        elif isinstance(message, Tokens) and identity in self._peers:
            self.speaker = identity
            self.handle(Stepped(identity.encode(), message.deltas))
            self.speaker = ""

    def _lose(self, identity: str) -> None:
        self._peers.pop(identity, None)
        self.handle(WorkerGone(identity.encode(), "its stream connection is gone"))

    def _tick(self) -> None:
        self._ticks += 1
        self.handle(Tick())
        for worker in self.core.busy_workers():
            identity = worker.decode()
            if identity in self._peers and not self.reaches("stream", identity):
                self._lose(identity)
        if self._ticks % BEAT_EVERY == 0:
            if self._up:
                self._router.send(Beat())
            else:
                self._greet()


def spec(
    request_id: str, serial: int, prompt: int, output: int, deadline_ms: float, model: str = "model"
) -> RequestSpec:
    return RequestSpec(
        kind=Kind.COMPLETION,
        request_id=request_id,
        model=model,
        created=0,
        prompt_ids=[serial] + [7] * (prompt - 1),
        sampling=Sampling(max_tokens=output),
        deadline_ms=deadline_ms,
    )
