"""The router's decisions: which request runs where, and who hears what of it.

Sans-IO: `handle(event, now) -> list[Action]` is the only way in and the sole mutator; the same
events give the same actions. The tables are in `tables.py`, the state machines in `state.py`; the
parts of `handle` are `core_peers` (who is there), `core_requests` (a try from Submit to its end)
and `core_placing` (queue to workers). After each event, what became free is given to the queue,
and gateways hear when what can be served has changed.
"""

from __future__ import annotations

from collections.abc import Callable

from common.errors import Code
from common.messages import (
    Beat,
    Cancel,
    DecodeStarted,
    Ended,
    Fleet,
    Hello,
    Holding,
    Journey,
    Leaving,
    Live,
    PairTrouble,
    PrefillEnded,
    PrefixDelta,
    Role,
    Submit,
    Took,
)
from services.router import (
    core_degradation,
    core_health,
    core_holding,
    core_limits,
    core_operator,
    core_pairs,
    core_peers,
    core_placing,
    core_rebuild,
    core_requests,
    core_timeline,
    core_yielding,
)
from services.router.admission.measure import measure, ramp
from services.router.census import census
from services.router.events import (
    Action,
    DrainExpired,
    DrainStarted,
    Event,
    LimitsChosen,
    PairsCleared,
    PeerGone,
    PolicyChosen,
    PromptsCleared,
    Received,
    RequestEvicted,
    Send,
    Tick,
    WorkerDrained,
    WorkerEvicted,
)
from services.router.records import Gateway, Worker
from services.router.settings import Settings
from services.router.tables import Tables


class Core:
    """`secrets` makes the 16 random bytes of a ticket. `tables` is for readers."""

    def __init__(self, settings: Settings, secrets: Callable[[], bytes], now: float) -> None:
        self.tables = Tables(settings, secrets, now)

    def handle(self, event: Event, now: float) -> list[Action]:
        """`now`: seconds, monotonic. Raises IllegalTransitionError on a bug of ours, never for what
        a peer sends."""
        tables = self.tables
        actions = self._react(event, now)
        if tables.workers_changed:
            ramp(tables, now)
            actions += self._fleet_changed(now)
        if isinstance(event, Tick):
            actions += core_placing.expire(tables, now)
            actions += core_yielding.make_room(tables, now)
        actions += core_rebuild.check(tables, now)
        if tables.freed and not tables.rebuilding:
            actions += core_placing.pump(tables, now)
            tables.freed = False
        if not tables.limits.max_queue and len(tables.waiting):
            sentence = "no worker is free, and this router keeps no queue"
            actions += core_placing.refuse_all(tables, Code.QUEUE_FULL, sentence, now)
        return actions

    def _react(self, event: Event, now: float) -> list[Action]:
        match event:
            case Received():
                return self._received(event, now)
            case PeerGone():
                return core_peers.gone(self.tables, event.peer, event.reason, now)
            case Tick():
                measure(self.tables, now)
                actions = core_health.tick(self.tables, now)
                actions += core_degradation.tick(self.tables, now)
                return actions + core_timeline.tick(self.tables, now)
            case WorkerDrained() | WorkerEvicted() | RequestEvicted():
                return core_operator.ordered(self.tables, event, now)
            case DrainStarted():
                self.tables.draining = self.tables.workers_changed = True
                return []
            case DrainExpired():
                sentence = "the router is stopping"
                return core_placing.refuse_all(self.tables, Code.DRAINING, sentence, now)
            case PolicyChosen() | PairsCleared() | PromptsCleared():
                return core_placing.ordered(self.tables, event)
            case LimitsChosen():
                return core_limits.choose(self.tables, event, now)

    def role_of(self, peer: str) -> Role | None:
        """None for a peer that has not said Hello, or was fenced."""
        worker = self.tables.workers.get(peer)
        if worker is not None:
            return worker.role
        if peer in self.tables.gateways and peer not in self.tables.fenced:
            return Role.GATEWAY
        return None

    def peers(self) -> list[str]:
        """Those thought to be connected."""
        workers = [w.identity for w in self.tables.workers.values() if w.connected]
        return workers + [gateway.identity for gateway in self.tables.live_gateways()]

    def check_invariants(self) -> None:
        """Raises AssertionError."""
        self.tables.check_invariants()

    def _received(self, event: Received, now: float) -> list[Action]:
        tables, message = self.tables, event.message
        if isinstance(message, Hello):
            return core_peers.hello(tables, event.peer, message, now)
        peer: Worker | Gateway | None = tables.workers.get(event.peer)
        if peer is None and event.peer not in tables.fenced:
            peer = tables.gateways.get(event.peer)
        if peer is None:
            tables.counts.drop("before hello")
            return core_peers.turn_away(tables, event.peer, message)
        actions = core_health.seen(tables, peer, now)
        if isinstance(message, Beat):
            return actions + core_peers.beat(tables, peer, message, now)
        if isinstance(message, Leaving):
            return actions + core_peers.leaving(tables, peer, message, now)
        if isinstance(peer, Gateway):
            return actions + self._from_gateway(peer, event, now)
        return actions + self._from_worker(peer, event, now)

    def _from_gateway(self, gateway: Gateway, event: Received, now: float) -> list[Action]:
        match event.message:
            case _ if gateway.gone:
                self.tables.counts.drop("gone peer")
            case Submit() as message:
                actions = core_health.left(self.tables, gateway, message.left, now)
                actions += core_requests.submit(self.tables, gateway, message, event.body, now)
                self.tables.freed |= len(self.tables.waiting) <= self.tables.waiting.look_past
                return actions
            case Live() as message:
                return core_holding.live(self.tables, gateway, message, now)
            case Cancel() as message:
                return core_requests.cancel(self.tables, gateway, message, now)
            case Journey() as message:
                core_timeline.told(self.tables, gateway, message, now)
            case _:
                self.tables.counts.drop("wrong role")
        return []

    def _from_worker(self, worker: Worker, event: Received, now: float) -> list[Action]:
        tables, role = self.tables, worker.role
        if worker.away:
            tables.counts.drop("gone peer")
            return []
        match event.message:
            case PrefillEnded() as message if role is Role.PREFILL:
                core_degradation.prefilled(tables, message)
                return core_requests.prefill_ended(tables, worker, message, now)
            case DecodeStarted() as message if role is Role.DECODE:
                return core_requests.decode_started(tables, worker, message, now)
            case Ended() as message if role is Role.DECODE:
                return core_requests.ended(tables, worker, message, now)
            case PrefixDelta() as message:
                core_placing.prefixes_changed(tables, worker, message)
            case PairTrouble() as message if role is Role.DECODE:
                return core_pairs.trouble(tables, worker, message, now)
            case Holding() as message:
                return core_holding.holding(tables, worker, message, now)
            case Took() as message:
                return core_holding.took(tables, worker, message, now)
            case _:
                tables.counts.drop("wrong role")
        return []

    def _fleet_changed(self, now: float) -> list[Action]:
        """Recomputes what gateways are told, and tells them if it differs."""
        tables = self.tables
        tables.workers_changed, tables.freed = False, True
        there = census(tables.workers.values())
        tables.shapes = there.shapes
        if there.decode_ready:
            tables.without_decode_since = None
        elif tables.without_decode_since is None:
            tables.without_decode_since = now
        by_prefix = tables.settings.prefixes
        fleet = Fleet(
            ready=bool(there.decode_ready) and not tables.draining,
            prefill_ready=there.prefill_ready,
            decode_ready=there.decode_ready,
            max_model_len=max((s.max_model_len for s in tables.shapes), default=0),
            model=there.model,
            reason=self._why_not_ready(there.decode_ready, there.decodes),
            block_tokens=there.block_tokens if by_prefix else 0,
            restores=there.restores,
        )
        if fleet == tables.fleet:
            return []
        tables.fleet = fleet
        return [Send(gateway.identity, fleet) for gateway in tables.live_gateways()]

    def _why_not_ready(self, ready: int, known: int) -> str:
        if self.tables.draining:
            return "the router is stopping"
        return "" if ready else f"none of {known} known decode workers is ready"
