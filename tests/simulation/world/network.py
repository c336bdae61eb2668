"""Connections as ZeroMQ makes them, under faults.

A connection keeps order in each direction and loses nothing while it lives. It ends when a process
dies, when one side hears nothing for `HEARTBEAT` (a partition, a stopped process), or when it is
broken by a fault; then all that was under way is lost, and what the dialling side had received and
not yet read. The side that dialled is told at once and dials again; the side that was dialled finds
out when it next sends (mandatory routing). Connections know nothing of each other, so messages of
different connections overtake each other at will. Beyond what ZeroMQ does, a seed may ask for
messages that vanish (`loss`) or come twice (`twice`). Messages travel as they are, except in seeds
that ask for the real encoding (`wire`).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

from common.messages import (
    DecodeToGateway,
    GatewayToDecode,
    GatewayToRouter,
    Hello,
    Message,
    Role,
    RouterToGateway,
    RouterToWorker,
    WorkerToRouter,
)
from common.net.wire import Decoder, encode
from tests.simulation.world.clock import Clock

if TYPE_CHECKING:
    from tests.simulation.world.process import Process

HEARTBEAT = 1.2
DIAL = 0.02
DIAL_AGAIN = 0.1
NOTICE = 0.01
TO_LISTENER, TO_DIALER = 0, 1

DECODERS: dict[tuple[str, int], Decoder[Any]] = {
    ("gateway", TO_LISTENER): Decoder(GatewayToRouter),
    ("gateway", TO_DIALER): Decoder(RouterToGateway),
    ("worker", TO_LISTENER): Decoder(WorkerToRouter),
    ("worker", TO_DIALER): Decoder(RouterToWorker),
    ("stream", TO_LISTENER): Decoder(DecodeToGateway),
    ("stream", TO_DIALER): Decoder(GatewayToDecode),
}


class Network:
    """`blocked`: directions (from, to) between names through which nothing comes. `delay`: mean of
    one way, seconds."""

    def __init__(self, clock: Clock, delay: float, loss: float, twice: float) -> None:
        self.clock = clock
        self.delay = delay
        self.loss = loss
        self.twice = twice
        self.wire = False
        self.blocked: dict[tuple[str, str], int] = {}
        self.data_blocked: dict[tuple[str, str], int] = {}
        self._connections: dict[Connection, None] = {}

    def carried(self, message: Message, kind: str, way: int) -> Message:
        """What the other side decodes."""
        if not self.wire:
            return message
        decoded: Message = DECODERS[kind, way].decode(encode(message))
        return decoded

    def open(self, source: str, target: str) -> bool:
        return (source, target) not in self.blocked

    def both_ways(self, one: str, other: str) -> bool:
        return self.open(one, other) and self.open(other, one)

    def data_open(self, prefill: str, decode: str) -> bool:
        """The KV plane between P and D."""
        return (prefill, decode) not in self.data_blocked

    def connections(self) -> list[Connection]:
        return list(self._connections)

    def add(self, connection: Connection) -> None:
        self._connections[connection] = None

    def remove(self, connection: Connection) -> None:
        self._connections.pop(connection, None)

    def block(self, pairs: list[tuple[str, str]], *, data: bool = False) -> None:
        table = self.data_blocked if data else self.blocked
        for pair in pairs:
            table[pair] = table.get(pair, 0) + 1
        for connection in self.connections() if not data else []:
            connection.check_heartbeat()

    def heal(self, pairs: list[tuple[str, str]], *, data: bool = False) -> None:
        table = self.data_blocked if data else self.blocked
        for pair in pairs:
            table[pair] -= 1
            if not table[pair]:
                del table[pair]
        for connection in self.connections():
            connection.flush()


class Connection:
    """One transport between `dialer` and `listener`. `port`: which socket of the listener."""

    def __init__(
        self,
        network: Network,
        dialer: Process,
        listener: Process,
        port: str,
        on_message: Callable[[Message, bytes | None], None],
        on_closed: Callable[[], None],
    ) -> None:
        self.network = network
        self.dialer = dialer
        self.listener = listener
        self.port = port
        self.open = True
        self._clock = network.clock
        self._on_message = on_message
        self._on_closed = on_closed
        self._arrival = [0.0, 0.0]
        self._kind = port
        if port == "control":
            self._kind = "worker" if dialer.role is not Role.GATEWAY else "gateway"
        self._held: tuple[deque[tuple[Message, bytes | None]], ...] = (deque(), deque())
        self._watched = False
        network.add(self)
        listener.accepted(self)

    def send(self, source: Process, message: Message, body: bytes | None = None) -> None:
        """Lost without a word when the other side is already gone."""
        if not self.open:
            return
        network = self.network
        way = TO_LISTENER if source is self.dialer else TO_DIALER
        if network.loss and self._clock.random.random() < network.loss:
            self._clock.note(f"lost {source.name} {kind_of(message)}")
            return
        message, copies = network.carried(message, self._kind, way), 1
        if network.twice and not isinstance(message, Hello):
            copies += self._clock.random.random() < network.twice
        for _ in range(copies):
            self._held[way].append((message, body))
        self._go(way)

    def _go(self, way: int) -> None:
        source, target = (self.dialer, self.listener) if way == 0 else (self.listener, self.dialer)
        if self.network.blocked and not self.network.open(source.name, target.name):
            return
        held = self._held[way]
        draw = self._clock.random.expovariate
        while held:
            message, body = held.popleft()
            arrival = max(self._clock.now + draw(1 / self.network.delay), self._arrival[way])
            self._arrival[way] = arrival
            self._clock.at(arrival, partial(self._arrive, way, message, body))

    def flush(self) -> None:
        """After a partition: what was kept back goes on."""
        if self.open:
            self._go(0)
            self._go(1)

    def _arrive(self, way: int, message: Message, body: bytes | None) -> None:
        if not self.open:
            return
        if way == 0:
            self.listener.when_awake(partial(self._to_listener, message, body))
        elif self.dialer.alive:
            self.dialer.when_awake(partial(self._to_dialer, message, body))

    def _to_listener(self, message: Message, body: bytes | None) -> None:
        self._clock.note(f"{self.dialer.identity} > {self.listener.name} {_brief(message)}")
        self.listener.heard(self, message, body)

    def _to_dialer(self, message: Message, body: bytes | None) -> None:
        if self.open:
            self._clock.note(f"{self.listener.name} > {self.dialer.identity} {_brief(message)}")
            self._on_message(message, body)

    def check_heartbeat(self) -> None:
        """A side that is stopped or cut off now closes the connection if that lasts."""
        if self.open and not self._watched and self._silent():
            self._watched = True
            self._clock.after(HEARTBEAT, self._heartbeat)

    def _silent(self) -> bool:
        cut = not self.network.both_ways(self.dialer.name, self.listener.name)
        return cut or self.dialer.hung or self.listener.hung

    def _heartbeat(self) -> None:
        self._watched = False
        if self.open and self._silent():
            self.close()

    def close(self) -> None:
        """The dialler hears of it when it is awake; the listener when it next sends."""
        if not self.open:
            return
        self.open = False
        self.network.remove(self)
        self._clock.after(NOTICE, lambda: self.dialer.when_awake(self._tell_dialer))

    def _tell_dialer(self) -> None:
        if self.dialer.alive:
            self._on_closed()


def kind_of(message: Message) -> str:
    """The tag on the wire: it outlives the name of a class, and so do the hashes of the traces."""
    return str(message.__struct_config__.tag)


def _brief(message: Message) -> str:
    request_id = getattr(message, "request_id", "")
    if request_id:
        return f"{kind_of(message)} {request_id}#{message.attempt}"  # type: ignore[attr-defined]
    return kind_of(message)
