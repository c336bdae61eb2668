"""The router's decisions: which request runs where, and what each peer is sent.

Sans-IO: `handle(event, now) -> list[Action]` is the only way in and the sole mutator; the same
events give the same actions. All state is in `tables`, the state machines are in
`records/states.py`, and each event and message has one rule in `rules/`. Each model has tables of
its own; the core gives a rule those of the model that a message is about.

A rule changes the tables and returns actions. What follows from the change of a table, whichever
rule made it, is done here after the rule: gateways are sent a summary of the fleet when the state
of a worker changed, and the queue is placed when something became free.
"""

from __future__ import annotations

from collections.abc import Callable

from common.errors import Code
from common.messages import (
    Abandoned,
    AdapterDone,
    AskAdapter,
    Beat,
    BudgetReached,
    Cancel,
    CopiedAhead,
    DecodeStarted,
    Ended,
    Fleet,
    Hello,
    Holding,
    KeptOrders,
    Leaving,
    Live,
    PairTrouble,
    PrefillEnded,
    PrefixDelta,
    RequestSummary,
    Role,
    Submit,
    Took,
    ToRouter,
)
from services.router.events import (
    Action,
    AdapterOrdered,
    DrainExpired,
    DrainStarted,
    Event,
    HookEnded,
    LimitsChosen,
    LocalEvent,
    PairsCleared,
    PeerGone,
    PolicyChosen,
    PromptsCleared,
    Received,
    RequestEvicted,
    RequestMoved,
    RoleOrdered,
    Send,
    StoreOrdered,
    Tick,
    WorkerDrained,
    WorkerEvicted,
)
from services.router.fleet.summary import summarize
from services.router.records.gateway import Gateway
from services.router.records.worker import Worker
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
    scale,
    submit,
    worker_membership,
    worker_trust,
)
from services.router.rules.measure import (
    look_at_balance,
    measure,
    rebalance_streams,
    wake_workers,
)
from services.router.settings import Settings
from services.router.tables import SharedTables, Tables

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
        self.shared = SharedTables(settings, secrets, uniform, now)
        for model in settings.models:
            self.shared.models[model] = Tables(self.shared, model)

    @property
    def tables(self) -> Tables:
        """Those of the first model, which is the only one of most fleets."""
        return next(iter(self.shared.models.values()))

    @property
    def queued(self) -> int:
        """Requests that wait for a worker."""
        return sum(len(tables.waiting) for tables in self.shared.models.values())

    def handle(self, event: Event, now: float) -> list[Action]:
        """`now`: seconds, monotonic. Raises IllegalTransitionError on a bug of ours, never because
        of a peer's message."""
        if isinstance(event, Received):
            actions = self._on_message(event, now)
        else:
            actions = self._on_event(event, now)
        for tables in self.shared.models.values():
            actions += self._follow_up(tables, event, now)
        return actions

    def _follow_up(self, tables: Tables, event: Event, now: float) -> list[Action]:
        """What follows from the changes of one model's tables."""
        actions: list[Action] = []
        if tables.changes.availability:
            worker_trust.set_slots(tables, now)
            actions += self._update_fleet(tables, now)
        if isinstance(event, Tick):
            actions += wake_workers(tables, now)
            actions += look_at_balance(tables, now)
            actions += scale.scale_workers(tables, now)
            actions += submit.refuse_waiting(tables, now)
            actions += operator.drop_evicted(tables, now)
            actions += preempt.preempt(tables, now)
            actions += preempt.end_grace(tables, now)
            actions += rebalance_streams(tables, now)
            actions += moves.move_streams(tables, now)
            actions += operator.answer_late_orders(tables, now)
            tables.changes.capacity |= tables.wants_prefill or tables.wants_forecast
        if tables.rebuilding:
            actions += reconcile.open_queue(tables, now)
        if tables.changes.capacity and not tables.rebuilding:
            actions += place_queue.place_waiting(tables, now)
            tables.changes.capacity = False
        if not tables.limits.max_queue and len(tables.waiting):
            sentence = "no worker is free, and this router keeps no queue"
            actions += submit.refuse_all(tables, Code.QUEUE_FULL, sentence, now)
        return actions

    def role_of(self, peer: str) -> Role | None:
        """None for a peer that has not said Hello, or was fenced."""
        worker = self.shared.worker(peer)
        if worker is not None:
            return worker.role
        if peer in self.shared.gateways and peer not in self.shared.fenced:
            return Role.GATEWAY
        return None

    def peers(self) -> list[str]:
        """Identities of the peers that are thought to be connected."""
        workers = [worker.identity for worker in self.shared.workers() if worker.connected]
        return workers + [gateway.identity for gateway in self.shared.live_gateways()]

    def check_invariants(self) -> None:
        """Raises AssertionError."""
        self.shared.check_invariants()

    def _on_message(self, event: Received, now: float) -> list[Action]:
        """A message that its sender may not send is dropped and counted, as is every message of a
        worker that is out of reach, except those that bring it back."""
        shared, message, peer = self.shared, event.message, event.peer
        if isinstance(message, Hello):
            return worker_membership.on_hello(shared, event, message, now)
        tables = shared.owners.get(peer)
        if tables is not None:
            return self._of_worker(tables, tables.workers[peer], message, now)
        gateway = None if peer in shared.fenced else shared.gateways.get(peer)
        if gateway is not None:
            return self._of_gateway(gateway, event, now)
        return worker_membership.reject_fenced(shared, peer, message)

    def _of_worker(  # noqa: C901, PLR0912 - one line for each message
        self, tables: Tables, worker: Worker, message: ToRouter, now: float
    ) -> list[Action]:
        """One rule for each message of a worker of this model."""
        is_decode, is_pool = worker.role.decodes, worker.role is Role.POOL
        actions = worker_trust.record_traffic(tables, worker, now)
        match message:
            case Beat():
                actions += worker_membership.on_beat(tables, worker, message, now)
            case Leaving():
                actions += worker_membership.on_leaving(worker, message, now)
            case _ if worker.away:
                tables.counts.drop("gone peer")
            case _ if is_pool and not isinstance(message, PrefixDelta):
                tables.counts.drop("wrong role")
            case PrefillEnded() if worker.role.prefills:
                actions += attempt_lifecycle.on_prefill_ended(tables, worker, message, now)
            case DecodeStarted() if is_decode:
                actions += attempt_lifecycle.on_decode_started(tables, worker, message, now)
            case Ended() if is_decode:
                actions += attempt_lifecycle.on_ended(tables, worker, message, now)
            case CopiedAhead() if is_decode:
                actions += moves.on_copied_ahead(tables, worker, message, now)
            case BudgetReached() if is_decode:
                actions += preempt.on_reached(tables, worker, message, now)
            case PrefixDelta():
                actions += worker_membership.on_prefix_delta(tables, worker, message)
            case AdapterDone():
                actions += operator.on_adapter_done(tables, worker, message)
            case PairTrouble():
                actions += pair_reports.on_pair_trouble(tables, worker, message, now)
            case Holding():
                actions += reconcile.reconcile_worker(tables, worker, message, now)
            case Took():
                actions += reconcile.adopt(tables, worker, message, now)
            case _:
                tables.counts.drop("wrong role")
        return actions

    def _of_gateway(self, gateway: Gateway, event: Received, now: float) -> list[Action]:
        """One rule for each message of a gateway, with the tables of the model that it is about."""
        shared, message = self.shared, event.message
        actions = gateway_membership.record_traffic(gateway, now)
        match message:
            case Beat():
                pass
            case Leaving():
                actions += gateway_membership.on_leaving(gateway, message)
            case Submit():
                actions += self._submitted(gateway, message, event.body, now)
            case RequestSummary():
                actions += request_records.on_request_summary(shared, gateway, message, now)
            case Abandoned():
                actions += attempt_lifecycle.on_abandoned(self._about(message), gateway, message)
            case Cancel():
                actions += attempt_lifecycle.on_cancel(self._about(message), gateway, message, now)
            case AskAdapter():
                actions += operator.ask_adapter(shared, gateway, message, now)
            case KeptOrders():
                actions += scale.on_kept(shared, gateway, message, now)
            case Live():
                actions += reconcile.reconcile_gateway(shared, gateway, message, now)
            case _:
                shared.counts.drop("wrong role")
        return actions

    def _submitted(
        self, gateway: Gateway, message: Submit, body: bytes | None, now: float
    ) -> list[Action]:
        left, actions = self.shared.owners.get(message.left), []
        if left is not None:
            actions = worker_trust.suspect_left_worker(left, gateway, message.left, now)
        tables, refused = submit.choose_model(self.shared, gateway, message)
        if tables is None:
            return actions + refused
        actions += submit.on_submit(tables, gateway, message, body, now)
        tables.changes.capacity |= len(tables.waiting) <= tables.waiting.look_past
        return actions

    def _about(self, message: Abandoned | Cancel) -> Tables:
        """The tables that have this attempt, or any if none has it."""
        attempt = self.shared.attempt((message.request_id, message.attempt))
        return self.tables if attempt is None else self.shared.models[attempt.model]

    def _on_event(  # noqa: C901, PLR0911, PLR0912 - one line for each event
        self, event: LocalEvent, now: float
    ) -> list[Action]:
        """One rule for each event that is no message."""
        shared = self.shared
        match event:
            case PeerGone():
                return worker_membership.on_peer_gone(shared, event.peer, event.reason, now)
            case Tick():
                return self._ticked(now)
            case WorkerDrained():
                tables = shared.owners.get(event.worker)
                return [] if tables is None else operator.drain_worker(tables, event)
            case RoleOrdered():
                tables = shared.owners.get(event.worker)
                return [] if tables is None else operator.order_role(tables, event)
            case WorkerEvicted():
                tables = shared.owners.get(event.worker)
                return [] if tables is None else operator.evict_worker(tables, event, now)
            case RequestMoved():
                attempt = shared.attempt((event.request_id, event.attempt))
                if attempt is None:
                    return []
                return operator.move_request(shared.models[attempt.model], event, now)
            case RequestEvicted():
                attempt = shared.attempt((event.request_id, event.attempt))
                if attempt is None:
                    return []
                return operator.evict_request(shared.models[attempt.model], event, now)
            case AdapterOrdered():
                return operator.order_adapter(shared, event, now)
            case StoreOrdered():
                return operator.order_store(event)
            case LimitsChosen():
                return operator.choose_limits(shared, event, now)
            case PolicyChosen():
                return operator.choose_policy(shared, event)
            case PromptsCleared():
                return operator.clear_prompts(shared, event)
            case PairsCleared():
                return pair_reports.clear_pairs(shared, event)
            case HookEnded():
                return scale.on_hook_ended(shared, event, now)
            case DrainStarted():
                for tables in shared.models.values():
                    tables.draining = tables.changes.availability = True
                return []
            case DrainExpired():
                return [
                    action
                    for tables in shared.models.values()
                    for action in submit.refuse_all(tables, Code.DRAINING, STOPPING, now)
                ]

    def _ticked(self, now: float) -> list[Action]:
        models = self.shared.models.values()
        for tables in models:
            measure(tables, now)
        worker_trust.forgive_silence(self.shared, now)
        actions = gateway_membership.give_up_absent(self.shared, now)
        actions += reconcile.fail_unknown(self.shared, now)
        for tables in models:
            actions += worker_trust.check_silence(tables, now)
            actions += degradation_reports.judge(tables, now)
        self.shared.forget_gone()
        return actions + request_records.make_due_records(self.shared, now)

    def _update_fleet(self, tables: Tables, now: float) -> list[Action]:
        """Computes the summary of the model's workers and sends it to gateways if it differs."""
        tables.changes.availability, tables.changes.capacity = False, True
        summary = summarize(tables.workers.values())
        tables.decode_limits = summary.decode_limits
        if summary.decode_ready:
            tables.without_decode_since = None
        elif tables.without_decode_since is None:
            tables.without_decode_since = now
        starts = tables.starts_from_zero
        fleet = Fleet(
            ready=(bool(summary.decode_ready) or starts) and not tables.draining,
            prefill_ready=summary.prefill_ready,
            decode_ready=summary.decode_ready,
            max_model_len=max((limits.max_model_len for limits in tables.decode_limits), default=0),
            model=tables.model,
            reason=STOPPING if tables.draining else summary.reason,
            block_tokens=summary.block_tokens if tables.settings.prefixes else 0,
            restores=summary.restores,
            adapters=summary.adapters,
        )
        if fleet == tables.fleet:
            return []
        tables.fleet = fleet
        return [Send(gateway.identity, fleet) for gateway in self.shared.live_gateways()]
