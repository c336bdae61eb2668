"""The router's production core among simulated gateways, workers and a network, in virtual time.

Everything random comes from one seed, so a seed replays to the same trace. Links keep order. A
kill loses the peer and what was under way to it; a blip breaks one control connection while the
process lives on; a hang stops a worker for a while. Sending to a peer that is not connected tells
the core so, as the daemon's mandatory-routing socket does; pings do the same every 200 ms. What is
wrong is raised as `PromiseBrokenError`: the core's invariants after each event, and here KV granted
beyond the limit, requests answered twice or never, work for nobody, waiting without need, and
leases that nobody freed.
"""

from __future__ import annotations

import hashlib
import heapq
import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import count

from common.messages import Message, Role
from services.router.core import Core
from services.router.events import Event, PeerGone, Received, Send, Tick
from services.router.placement import place
from services.router.placement_types import Placement
from services.router.policies import least_loaded
from services.router.records import Key
from services.router.settings import Settings
from services.router.state import TryState
from tests.simulation.router_peers import SimDecode, SimGateway, SimPeer, SimPrefill

PULSE = 0.2
QUIET_SECONDS = 60.0
ZOMBIE_SECONDS = 1.0
ABORT_SECONDS = 0.5


class PromiseBrokenError(AssertionError):
    """A promise of the router that this seed broke."""


class World:
    """`run` plays `seconds` of load and faults, then lets everything settle and judges."""

    def __init__(self, seed: int, seconds: float = 12.0) -> None:
        self.random = random.Random(seed)
        self.now = 0.0
        self.faults_end = seconds
        self.peers: dict[str, SimPeer] = {}
        self.by_name: dict[tuple[Role, str], SimPeer] = {}
        self._queue: list[tuple[float, int, Callable[[], None]]] = []
        self._order = count()
        self._last: dict[tuple[str, str], float] = {}
        self._trace = hashlib.blake2b(digest_size=8)
        self._aborting: dict[Key, float] = {}
        self.events = 0
        secrets = (n.to_bytes(16) for n in count())
        settings = Settings(max_queue=24, queue_bytes_max=4000, history=100_000, lease_ms=30_000.0)
        self.core = Core(settings, lambda: next(secrets), 0.0)
        shapes = self.random.choice([(1, 1), (2, 2), (1, 3), (0, 2), (3, 1)])
        for i in range(2):
            self.add(SimGateway(self, f"g{i}"))
        for i in range(shapes[0]):
            self.add(SimPrefill(self, f"p{i}"))
        for i in range(shapes[1]):
            self.add(SimDecode(self, f"d{i}"))

    def run(self) -> str:
        """Returns the digest of everything that happened."""
        self.after(PULSE, self._pulse)
        self.after(self.random.uniform(0.5, 2.0), self._fault)
        while self._queue and self.now < self.faults_end + QUIET_SECONDS:
            self.now, _, act = heapq.heappop(self._queue)
            act()
        self._judge()
        return self._trace.hexdigest()

    # ------------------------------------------------------------ time and network

    def after(self, seconds: float, act: Callable[[], None]) -> None:
        heapq.heappush(self._queue, (self.now + seconds, next(self._order), act))

    def link(self, source: str, target: str, act: Callable[[], None]) -> None:
        """Delivers after a random delay, in order on this link."""
        arrival = self.now + self.random.expovariate(1 / 0.002)
        arrival = max(arrival, self._last.get((source, target), 0.0))
        self._last[source, target] = arrival
        heapq.heappush(self._queue, (arrival, next(self._order), act))

    def add(self, peer: SimPeer) -> None:
        self.peers[peer.identity] = peer
        self.by_name[peer.role, peer.name] = peer
        self.after(self.random.uniform(0, 0.5), peer.start)

    def to_core(self, peer: SimPeer, message: Message, body: bytes | None = None) -> None:
        if not (peer.alive and peer.connected):
            return
        epoch = peer.epoch

        def arrive() -> None:
            if peer.epoch == epoch:
                self.feed(Received(peer.identity, message, body))  # type: ignore[arg-type]

        self.link(peer.identity, "core", arrive)

    def feed(self, event: Event) -> None:
        """One event into the core and its actions out, as the daemon does it."""
        events = [event]
        while events:
            first = events.pop(0)
            self.events += 1
            self._trace.update(f"{self.now:.9f}{first}".encode())
            actions = self.core.handle(first, self.now)
            self._check()
            for action in actions:
                if isinstance(action, Send):
                    self._trace.update(f"{action.peer}{action.message}".encode())
                    if not self._deliver(action):
                        events.append(PeerGone(action.peer, "its connection closed"))

    def _deliver(self, send: Send) -> bool:
        peer = self.peers.get(send.peer)
        if peer is None or not (peer.alive and peer.connected):
            return False
        epoch = peer.epoch

        def arrive() -> None:
            if peer.alive and peer.epoch == epoch:
                peer.receive(send.message)

        self.link("core", send.peer, arrive)
        return True

    def _pulse(self) -> None:
        self.feed(Tick())
        for identity in self.core.peers():
            peer = self.peers[identity]
            if not (peer.alive and peer.connected):
                self.feed(PeerGone(identity, "its connection closed"))
        self._judge_pace()
        self.after(PULSE, self._pulse)

    # ------------------------------------------------------------ faults

    def _fault(self) -> None:
        if self.now >= self.faults_end:
            return
        alive = sorted(peer.identity for peer in self.peers.values() if peer.alive)
        victim = self.peers[self.random.choice(alive)]
        kind = self.random.choice(["kill", "kill", "blip", "hang"])
        self._trace.update(f"{kind}{victim.identity}".encode())
        if kind == "kill":
            victim.die()
            self.after(self.random.uniform(0.05, 3.0), lambda: self.add(victim.successor()))
        elif kind == "blip":
            victim.disconnect()
            self.after(self.random.uniform(0.01, 1.0), victim.reconnect)
        else:
            victim.hang(self.random.uniform(0.5, 5.0))
        self.after(self.random.uniform(0.3, 2.0), self._fault)

    # ------------------------------------------------------------ judgement

    def _check(self) -> None:
        try:
            self.core.check_invariants()
        except AssertionError as error:
            raise PromiseBrokenError(f"invariant at {self.now:.3f}: {error}") from error

    def violate(self, sentence: str) -> None:
        raise PromiseBrokenError(f"at {self.now:.3f}: {sentence}")

    def _judge_pace(self) -> None:
        """Nobody waits who could be placed, and an abort ends a stream at once."""
        tables, board = self.core.tables, self.core.tables.board
        if len(tables.waiting):
            ask = tables.waiting.head().ask
            choice = place(ask, board.open_decodes(), board.prefills(), least_loaded)
            if isinstance(choice, Placement):
                self.violate(f"{tables.waiting.head().key} waits though it fits")
        aborting = [each for each in tables.tries.values() if each.state is TryState.ABORTING]
        self._aborting = {each.key: self._aborting.get(each.key, self.now) for each in aborting}
        for each in aborting:
            slow = self.now - self._aborting[each.key] > ABORT_SECONDS
            if slow and self.peers[each.decode].undisturbed:
                self.violate(f"{each.key} was aborted and goes on")

    def judge_finish(self, key: Key) -> None:
        """A worker finished a try on its own: somebody must still have wanted it lately."""
        if key in self.core.tables.tries:
            return
        over = [each for each in self.core.tables.history if each.key == key]
        if over and over[0].finished is not None and self.now - over[0].finished > ZOMBIE_SECONDS:
            self.violate(f"{key} was worked on long after it was over")

    def _judge(self) -> None:
        tables = self.core.tables
        if tables.tries or len(tables.waiting) or tables.active:
            self.violate(f"still in the tables: {[(k, t.state) for k, t in tables.tries.items()]}")
        for worker in tables.workers.values():
            if worker.held_tokens or worker.queued_tokens:
                self.violate(f"{worker.name} still holds credits")
        for peer in self.peers.values():
            if peer.alive:
                peer.judge()


@contextmanager
def mutant(target: object, name: str, replacement: object) -> Iterator[None]:
    """Plants a bug for the time of a test."""
    original = getattr(target, name)
    setattr(target, name, replacement)
    try:
        yield
    finally:
        setattr(target, name, original)
