"""The router's decisions: which request runs where, and what each peer is sent.

Sans-IO: `handle(event, now) -> list[Action]` is the only way in and the sole mutator; the same
events give the same actions. All state is in `tables.py`, the state machines are in
`records/states.py`, and each event and message has one rule in `rules/`.

A rule changes the tables and returns actions. What follows from the change of a table, whichever
rule made it, is done here after the rule: gateways are sent a summary of the fleet when the state
of a worker changed, and the queue is placed when something became free.
"""

from __future__ import annotations

from collections.abc import Callable

from common.errors import Code
from common.messages import (
    Abandoned,
    Beat,
    Cancel,
    DecodeStarted,
    Ended,
    Fleet,
    Hello,
    Holding,
    Leaving,
    Live,
    PairTrouble,
    PrefillEnded,
    PrefixDelta,
    RequestSummary,
    Role,
    Submit,
    Took,
)
from services.router.events import (
    Action,
    DrainExpired,
    DrainStarted,
    Event,
    LimitsChosen,
    LocalEvent,
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
from services.router.fleet.summary import summarize
from services.router.rules import (
    attempt_lifecycle,
    degradation_reports,
    gateway_membership,
    moves,
    operator,
    pair_reports,
    place_queue,
    preempt,
    reconcile,
    request_records,
    startup,
    submit,
    worker_membership,
    worker_trust,
)
from services.router.rules.measure import measure, ramp
from services.router.settings import Settings
from services.router.tables import Tables

STOPPING = "the router is stopping"


class Core:
    """`secrets` makes the 16 random bytes of a ticket, `uniform` draws from [0, 1)."""

    def __init__(
        self,
        settings: Settings,
        secrets: Callable[[], bytes],
        uniform: Callable[[], float],
        now: float,
    ) -> None:
        #: Others may read them.
        self.tables = Tables(settings, secrets, uniform, now)

    def handle(self, event: Event, now: float) -> list[Action]:
        """`now`: seconds, monotonic. Raises IllegalTransitionError on a bug of ours, never because
        of a peer's message."""
        tables = self.tables
        if isinstance(event, Received):
            actions = self._on_message(event, now)
        else:
            actions = self._on_event(event, now)
        if tables.changes.availability:
            ramp(tables, now)
            actions += self._update_fleet(now)
        if isinstance(event, Tick):
            actions += place_queue.refuse_waiting(tables, now)
            actions += preempt.preempt(tables, now)
            actions += moves.move_streams(tables, now)
        actions += startup.open_queue(tables, now)
        if tables.changes.capacity and not tables.rebuilding:
            actions += place_queue.place_waiting(tables, now)
            tables.changes.capacity = False
        if not tables.limits.max_queue and len(tables.waiting):
            sentence = "no worker is free, and this router keeps no queue"
            actions += place_queue.refuse_all(tables, Code.QUEUE_FULL, sentence, now)
        return actions

    def role_of(self, peer: str) -> Role | None:
        """None for a peer that has not said Hello, or was fenced."""
        worker = self.tables.workers.get(peer)
        if worker is not None:
            return worker.role
        if peer in self.tables.gateways and peer not in self.tables.fenced:
            return Role.GATEWAY
        return None

    def peers(self) -> list[str]:
        """Identities of the peers that are thought to be connected."""
        workers = [w.identity for w in self.tables.workers.values() if w.connected]
        return workers + [gateway.identity for gateway in self.tables.live_gateways()]

    def check_invariants(self) -> None:
        """Raises AssertionError."""
        self.tables.check_invariants()

    def _on_message(  # noqa: C901, PLR0912 - one line for each message
        self, event: Received, now: float
    ) -> list[Action]:
        """One rule for each message. A message that its sender may not send is dropped and counted,
        as is every message of a worker that is out of reach, except those that bring it back."""
        tables, message = self.tables, event.message
        if isinstance(message, Hello):
            return worker_membership.on_hello(tables, event, message, now)
        worker = tables.workers.get(event.peer)
        gateway = None if event.peer in tables.fenced else tables.gateways.get(event.peer)
        peer = worker or gateway
        if peer is None:
            return worker_membership.reject_fenced(tables, event.peer, message)
        actions = worker_trust.record_traffic(tables, peer, now)
        if gateway is not None:
            actions += gateway_membership.return_gone(gateway, now)
        match message:
            case Beat() if worker:
                actions += worker_membership.on_beat(tables, worker, message, now)
            case Beat() if gateway:
                pass
            case Leaving() if worker:
                actions += worker_membership.on_leaving(worker, message, now)
            case Leaving() if gateway:
                actions += gateway_membership.on_leaving(gateway, message)
            case _ if worker and worker.away:
                tables.counts.drop("gone peer")
            case Submit() if gateway:
                actions += worker_trust.suspect_left_worker(tables, gateway, message.left, now)
                actions += submit.on_submit(tables, gateway, message, event.body, now)
                tables.changes.capacity |= len(tables.waiting) <= tables.waiting.look_past
            case PrefillEnded() if worker and worker.role is Role.PREFILL:
                actions += attempt_lifecycle.on_prefill_ended(tables, worker, message, now)
            case DecodeStarted() if worker and worker.role is Role.DECODE:
                actions += attempt_lifecycle.on_decode_started(tables, worker, message, now)
            case Ended() if worker and worker.role is Role.DECODE:
                actions += attempt_lifecycle.on_ended(tables, worker, message, now)
            case RequestSummary() if gateway:
                actions += request_records.on_request_summary(tables, gateway, message, now)
            case Abandoned() if gateway:
                actions += attempt_lifecycle.on_abandoned(tables, gateway, message)
            case Cancel() if gateway:
                actions += attempt_lifecycle.on_cancel(tables, gateway, message, now)
            case Live() if gateway:
                actions += reconcile.reconcile_gateway(tables, gateway, message, now)
            case PrefixDelta() if worker:
                actions += place_queue.on_prefix_delta(tables, worker, message)
            case PairTrouble() if worker:
                actions += pair_reports.on_pair_trouble(tables, worker, message, now)
            case Holding() if worker:
                actions += reconcile.reconcile_worker(tables, worker, message, now)
            case Took() if worker:
                actions += reconcile.adopt(tables, worker, message, now)
            case _:
                tables.counts.drop("wrong role")
        return actions

    def _on_event(  # noqa: C901, PLR0911 - one line for each event
        self, event: LocalEvent, now: float
    ) -> list[Action]:
        """One rule for each event that is no message."""
        tables = self.tables
        match event:
            case PeerGone():
                return worker_membership.on_peer_gone(tables, event.peer, event.reason, now)
            case Tick():
                measure(tables, now)
                actions = worker_trust.check_silence(tables, now)
                actions += degradation_reports.judge(tables, now)
                return actions + request_records.make_due_records(tables, now)
            case WorkerDrained():
                return operator.drain_worker(tables, event)
            case WorkerEvicted():
                return operator.evict_worker(tables, event, now)
            case RequestEvicted():
                return operator.evict_request(tables, event, now)
            case LimitsChosen():
                return operator.choose_limits(tables, event, now)
            case PolicyChosen():
                return operator.choose_policy(tables, event)
            case PromptsCleared():
                return operator.clear_prompts(tables, event)
            case PairsCleared():
                return pair_reports.clear_pairs(tables, event)
            case DrainStarted():
                tables.draining = tables.changes.availability = True
                return []
            case DrainExpired():
                return place_queue.refuse_all(tables, Code.DRAINING, STOPPING, now)

    def _update_fleet(self, now: float) -> list[Action]:
        """Computes the summary of the fleet and sends it to gateways if it differs."""
        tables = self.tables
        tables.changes.availability, tables.changes.capacity = False, True
        summary = summarize(tables.workers.values())
        tables.decode_limits = summary.decode_limits
        if summary.decode_ready:
            tables.without_decode_since = None
        elif tables.without_decode_since is None:
            tables.without_decode_since = now
        fleet = Fleet(
            ready=bool(summary.decode_ready) and not tables.draining,
            prefill_ready=summary.prefill_ready,
            decode_ready=summary.decode_ready,
            max_model_len=max((limits.max_model_len for limits in tables.decode_limits), default=0),
            model=summary.model,
            reason=STOPPING if tables.draining else summary.reason,
            block_tokens=summary.block_tokens if tables.settings.prefixes else 0,
            restores=summary.restores,
        )
        if fleet == tables.fleet:
            return []
        tables.fleet = fleet
        return [Send(gateway.identity, fleet) for gateway in tables.live_gateways()]
