"""What every simulated daemon has: a life, a name with an incarnation, connections, bad moments."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING

from common.identity import identity_of
from common.messages import Message, Role
from tests.simulation.world.clock import Clock
from tests.simulation.world.network import DIAL, DIAL_AGAIN, Connection, Network

if TYPE_CHECKING:
    from tests.simulation.world.fleet import Fleet


class Process:
    """`disturbed`: when a fault last touched it. `doors`: its accepted connections, by port and by
    the dialler's identity."""

    role: Role

    def __init__(self, fleet: Fleet, name: str, incarnation: int = 1) -> None:
        self.fleet = fleet
        self.clock: Clock = fleet.clock
        self.network: Network = fleet.network
        self.name = name
        self.number = incarnation
        self.incarnation = str(incarnation)
        self.identity = identity_of(name, self.incarnation)
        self.alive = True
        self.hung = False
        self.born = fleet.clock.now
        self.disturbed = fleet.clock.now
        self.doors: dict[tuple[str, str], Connection] = {}
        self._stalled: deque[Callable[[], None]] = deque()

    def start(self) -> None:
        raise NotImplementedError

    def successor(self) -> Process:
        return type(self)(self.fleet, self.name, self.number + 1)

    # ------------------------------------------------------------ life

    def calm(self, seconds: float) -> bool:
        """Nothing bad happened to it for so long."""
        return self.alive and not self.hung and self.clock.now - self.disturbed > seconds

    def disturb(self) -> None:
        self.disturbed = self.clock.now

    def die(self) -> None:
        self.disturb()
        self.alive = False
        self._stalled.clear()
        for connection in self.network.connections():
            if self in (connection.dialer, connection.listener):
                connection.close()

    def hang(self, seconds: float) -> None:
        """As SIGSTOP does: what comes waits."""
        if self.hung or not self.alive:
            return
        self.hung = True
        self.disturb()
        self.clock.after(seconds, lambda: self._wake() if self.alive else None)
        for connection in self.network.connections():
            if self in (connection.dialer, connection.listener):
                connection.check_heartbeat()

    def _wake(self) -> None:
        self.hung = False
        self.disturb()
        self.clock.note(f"wake {self.identity}")
        while self._stalled and self.alive and not self.hung:
            self._stalled.popleft()()

    def when_awake(self, act: Callable[[], None]) -> None:
        if self.hung:
            self._stalled.append(act)
        elif self.alive:
            act()

    def every(self, seconds: float, act: Callable[[], None]) -> None:
        """A timer: late by as long as the process was stopped, ends with it."""

        def fire() -> None:
            if self.alive:
                act()
                self.clock.after(seconds, lambda: self.when_awake(fire))

        self.clock.after(seconds, lambda: self.when_awake(fire))

    # ------------------------------------------------------------ as a listener

    def accepted(self, connection: Connection) -> None:
        """A newer connection of the same identity takes over (ROUTER_HANDOVER)."""
        key = (connection.port, connection.dialer.identity)
        older = self.doors.get(key)
        if older is not None and older.open:
            older.close()
        self.doors[key] = connection

    def heard(self, connection: Connection, message: Message, body: bytes | None) -> None:
        raise NotImplementedError

    def reaches(self, port: str, identity: str) -> bool:
        connection = self.doors.get((port, identity))
        return connection is not None and connection.open

    def answer(self, port: str, identity: str, message: Message, body: bytes | None = None) -> bool:
        """False when this peer has no connection here."""
        connection = self.doors.get((port, identity))
        if connection is None or not connection.open:
            return False
        connection.send(self, message, body)
        return True


class Dialer:
    """Keeps one connection to whoever has this name, as a DEALER does."""

    def __init__(
        self,
        owner: Process,
        target: Callable[[], Process | None],
        port: str,
        *,
        on_up: Callable[[], None],
        on_down: Callable[[], None],
        on_message: Callable[[Message, bytes | None], None],
        again: bool = True,
    ) -> None:
        self.connection: Connection | None = None
        self._owner = owner
        self._target = target
        self._port = port
        self._on_up = on_up
        self._on_down = on_down
        self._on_message = on_message
        self._again = again
        self._stopped = False

    def dial(self) -> None:
        self._owner.clock.after(DIAL, self._try)

    def stop(self) -> None:
        self._stopped = True
        if self.connection is not None:
            self.connection.close()

    def send(self, message: Message, body: bytes | None = None) -> bool:
        if self.connection is None or not self.connection.open:
            return False
        self.connection.send(self._owner, message, body)
        return True

    def _try(self) -> None:
        owner = self._owner
        if not owner.alive or self._stopped:
            return
        target = self._target()
        there = target is not None and target.alive and not target.hung and not owner.hung
        if target is None or not there or not owner.network.both_ways(owner.name, target.name):
            owner.clock.after(DIAL_AGAIN, self._try)
            return
        self.connection = Connection(
            owner.network, owner, target, self._port, self._on_message, self._closed
        )
        owner.disturb()
        self._on_up()

    def _closed(self) -> None:
        self.connection = None
        self._owner.disturb()
        if self._stopped:
            return
        self._on_down()
        if self._again and not self._stopped:
            self.dial()
