"""All state of the router core that is of one model, and what must always hold of it. Only the
rules change it."""

from __future__ import annotations

from common.blocks import kv_need
from common.identity import AttemptKey
from common.messages import Fleet, PriorityClass, Role
from services.router.admission.limits import Limits
from services.router.admission.state import Admission
from services.router.degradation.detector import DegradationDetector
from services.router.estimates.drain_rate import DrainRate
from services.router.estimates.estimates import Estimates
from services.router.fleet.balance.controller import Balance
from services.router.fleet.pairing import may_give
from services.router.fleet.prompt_quarantine import PromptQuarantine
from services.router.fleet.rebalance import Rebalance
from services.router.fleet.scale.controller import Scale
from services.router.fleet.snapshots import WorkerSnapshots
from services.router.fleet.summary import DecodeLimits
from services.router.placement.memory import PlacementMemory
from services.router.placement.policies import least_loaded
from services.router.placement.policies.registry import POLICIES
from services.router.placement.types import Placement, PlacementOptions, ResourceRequest, Speed
from services.router.queue.waiting_queue import WaitingQueue
from services.router.records.adapters import AdapterOrders
from services.router.records.attempt import Attempt
from services.router.records.changes import Changes
from services.router.records.move import MoveOrder
from services.router.records.states import (
    ON_WORKER,
    AttemptEvent,
    AttemptState,
    WorkerEvent,
    WorkerState,
)
from services.router.records.worker import Worker
from services.router.settings import Settings
from services.router.tables.shared import SharedTables


def _placement_memory(settings: Settings, *, pooling: bool) -> PlacementMemory:
    """A pooling model has a policy of its own, and no prefill workers."""
    policy = least_loaded.NAME if pooling else settings.policy
    remote_prefill = "never" if pooling else settings.remote_prefill
    return PlacementMemory(POLICIES[policy], PlacementOptions(settings.mode, remote_prefill))


def _scale(settings: Settings, model: str) -> Scale:
    owner = f"{settings.name}-{settings.incarnation}"
    return Scale(settings.scale, owner, settings.floors.get(model, 1))


def _no_fleet(model: str, *, ready: bool) -> Fleet:
    return Fleet(ready=ready, prefill_ready=0, decode_ready=0, max_model_len=0, model=model)


class Tables:
    """An attempt stands in several tables: among the live ones, under its request, under its
    gateway, in the queue or on its workers. `add`, `place`, `open_prefill`, `close_prefill` and
    `remove` are the only ones that change these, so that they always agree."""

    def __init__(self, shared: SharedTables, model: str) -> None:
        settings = shared.settings
        self.shared = shared
        #: Name of the model.
        self.model = model
        #: Whether it is a pooling model, as `Settings` has it.
        self.pooling = model in settings.pooling
        self.settings = settings
        #: Makes the 16 random bytes of a ticket.
        self.secrets = shared.secrets
        #: When this router started.
        self.started = shared.started
        #: Of all models: gateways by identity, the counts, and the attempts that are over.
        self.gateways = shared.gateways
        self.counts = shared.counts
        self.history, self.refusals = shared.history, shared.refusals
        self.recorder = shared.recorder
        #: What changed since the core last acted on changes.
        self.changes = Changes()
        self.snapshots = WorkerSnapshots(self.changes)
        #: Workers by identity, those that are out of reach included. `add_worker` and `drop_worker`
        #: change it.
        self.workers: dict[str, Worker] = {}
        #: Those of them that are pools.
        self.pools: dict[str, Worker] = {}
        #: Attempts that are not over.
        self.attempts: dict[AttemptKey, Attempt] = {}
        #: Those of them whose streams nobody reads.
        self.abandoned: dict[AttemptKey, Attempt] = {}
        #: Those of them that are ordered to leave their decode worker.
        self.leaving: dict[AttemptKey, Attempt] = {}
        #: Attempts that were parked a moment ago: who still keeps their KV, and since when.
        self.parked: dict[AttemptKey, tuple[str, float]] = {}
        #: Number of the newest live attempt of each request.
        self.newest: dict[str, int] = {}
        #: What was active when `limits` were last set; that may be more than they allow.
        self.active_before = 0
        self.waiting = WaitingQueue(
            settings.max_queue, settings.queue_bytes_max, settings.admission
        )
        self.drain_rate = DrainRate()
        self.estimates = Estimates(settings.admission)
        self.placement_memory = _placement_memory(settings, pooling=self.pooling)
        self.admission = Admission(settings.admission, shared.keys, shared.uniform)
        #: The limits in force; an operator may set them, for all models alike.
        self.limits = Limits(
            settings.max_active, settings.max_queue, settings.queue_bytes_max, settings.ttft_slo_ms
        )
        self._add_controllers(settings)
        #: Whether the router stops: it admits nothing new.
        self.draining = False
        #: Whether it has just started and places nothing yet (`rules/reconcile.py`).
        self.rebuilding = settings.rebuild_seconds > 0 and settings.max_queue > 0
        #: Whether a queued attempt lacked only a prefill worker, or headroom on one, when placement
        #: last looked.
        self.wants_prefill = False
        #: Whether one may begin ahead of its slot once more streams run, though none has ended.
        self.wants_forecast = False
        #: Identities of the workers that their hosts' health daemons have something against.
        self.unhealthy: frozenset[str] = frozenset()
        #: Since when no decode worker has been ready; None = one is ready.
        self.without_decode_since: float | None = shared.started
        #: The different limits of the decode workers that are here, ready or not.
        self.decode_limits: tuple[DecodeLimits, ...] = ()
        #: The summary that gateways were last sent.
        self.fleet = _no_fleet(model, ready=self.scale.starts_from_zero)

    def _add_controllers(self, settings: Settings) -> None:
        """Each decides something about workers from what it was told before."""
        self.adapter_orders = AdapterOrders()
        self.quarantine = PromptQuarantine(settings.liveness.deaths_max)
        self.degradation = DegradationDetector(settings.degradation)
        self.balance = Balance(settings.balance, watches=settings.scale.mode != "off")
        self.rebalance = Rebalance(settings.rebalance)
        self.scale = _scale(settings, self.model)

    @property
    def active(self) -> int:
        """Attempts that are on workers."""
        return len(self.attempts) - len(self.waiting)

    @property
    def starts_from_zero(self) -> bool:
        """Whether requests wait for the first decode worker of the model, because it is woken or
        started for them."""
        if self.scale.floor:
            return False
        ready = WorkerState.READY
        asleep = any(worker.asleep and worker.state is ready for worker in self.workers.values())
        return asleep or self.scale.starts_from_zero

    def can_ever_hold(self, request: ResourceRequest) -> bool:
        """Whether an idle decode worker could hold it; True, too, while none is known."""
        return not self.decode_limits or any(limits.fit(request) for limits in self.decode_limits)

    def add_worker(self, worker: Worker) -> None:
        """What was measured of a worker of its name is thought to hold for it."""
        self.workers[worker.identity] = worker
        prefill, step = self.estimates.prefill.speeds, self.estimates.steps.speeds
        worker.speed = Speed(prefill.distinct(worker.name), step.distinct(worker.name))
        if worker.role is Role.POOL:
            self.pools[worker.identity] = worker
        self.shared.owners[worker.identity] = self

    def retire_row(self, worker: Worker, reason: str, now: float) -> None:
        """Another row of this worker takes the place of this one, which holds nothing."""
        assert not worker.held
        if worker.connected:
            worker.apply(WorkerEvent.LOST, reason, now)
        self.snapshots.refresh()
        self.drop_worker(worker.identity)

    def drop_worker(self, identity: str) -> None:
        """Forgets the row of a worker that is gone."""
        del self.workers[identity]
        self.pools.pop(identity, None)
        del self.shared.owners[identity]

    def add(self, attempt: Attempt) -> None:
        """A new attempt is live. The caller then queues, places or ends it."""
        self.attempts[attempt.key] = attempt
        if attempt.abandoned:
            self.abandoned[attempt.key] = attempt
        self.newest[attempt.request_id] = attempt.number
        self.gateways[attempt.gateway].attempts[attempt.key] = None
        self.admission.live[attempt.priority] += 1

    def set_abandoned(self, attempt: Attempt, *, abandoned: bool) -> None:
        """A queued attempt changes its place."""
        queued = attempt.key in self.waiting
        if queued:
            self.waiting.remove(attempt)
        attempt.abandoned = abandoned
        self.abandoned.pop(attempt.key, None)
        if abandoned:
            self.abandoned[attempt.key] = attempt
        if queued:
            self.enqueue(attempt)

    def order_move(self, attempt: Attempt, order: MoveOrder | None) -> None:
        """None takes the order back."""
        attempt.leaves_by = order
        if order is None:
            self.leaving.pop(attempt.key, None)
        else:
            self.leaving[attempt.key] = attempt

    def enqueue(self, attempt: Attempt) -> None:
        """A live attempt waits for a worker."""
        self.waiting.append(attempt)
        if self.waiting.head() is attempt:
            self.changes.capacity = True

    def place(self, attempt: Attempt, placement: Placement, now: float) -> None:
        """An attempt that has left the queue, or was never in it, is on its decode worker, which
        promises KV for prompt and answer."""
        attempt.apply(AttemptEvent.PLACED)
        attempt.placement, attempt.placed, attempt.waits_for = placement, now, None
        decode = placement.decode
        needed = decode.kv_need(attempt.request.promised_tokens)
        self.workers[decode.identity].hold(attempt.key, needed)
        if attempt.priority is PriorityClass.BATCH:
            self.workers[decode.identity].pace.begun()

    def regrant(self, attempt: Attempt, kv_tokens: int) -> None:
        """Its decode worker promises a placed attempt KV for so many of its tokens; 0 = all."""
        attempt.request = attempt.request._replace(kv_tokens=kv_tokens)
        worker = self.workers[attempt.decode]
        needed = worker.view().kv_need(attempt.request.promised_tokens)
        worker.hold(attempt.key, needed, before=worker.held[attempt.key])

    def open_prefill(self, attempt: Attempt, worker: Worker, *, computed: bool = False) -> None:
        """A prefill worker promises KV for the prompt of a placed attempt. `computed`: it has
        computed the prompt already."""
        attempt.prefill_open = True
        tokens = attempt.request.prompt_tokens
        capacity = worker.capacity
        groups = capacity.kv_groups
        worker.hold(attempt.key, kv_need(tokens, capacity.block_tokens, groups, computes=True))
        if not computed:
            worker.start_prompt(attempt.key, tokens)

    def finish_prompt(self, attempt: Attempt, worker: Worker) -> None:
        """The worker has computed the prompt. Idempotent."""
        worker.finish_prompt(attempt.key)
        self.changes.capacity |= self.wants_prefill

    def close_prefill(self, attempt: Attempt) -> None:
        """The prefill worker need hold nothing for it any more. Idempotent."""
        if attempt.prefill_open:
            attempt.prefill_open = False
            self.workers[attempt.prefill].abandon(attempt)
            self.changes.capacity |= self.wants_prefill

    def remove(self, attempt: Attempt) -> None:
        """A live attempt is over; its prefill worker was released before."""
        if attempt.key in self.waiting:
            self.waiting.remove(attempt)
        elif attempt.decode:
            self.workers[attempt.decode].release(attempt.key)
            self.workers[attempt.decode].pace.ended()
        del self.attempts[attempt.key]
        self.abandoned.pop(attempt.key, None)
        self.leaving.pop(attempt.key, None)
        if self.newest.get(attempt.request_id) == attempt.number:
            del self.newest[attempt.request_id]
        self.gateways[attempt.gateway].attempts.pop(attempt.key, None)
        self.admission.live[attempt.priority] -= 1
        self.changes.capacity = True

    def set_limits(self, limits: Limits) -> None:
        """What runs above a lower `max_active` goes on."""
        self.limits, self.active_before = limits, self.active
        self.waiting.set_bounds(limits.max_queue, limits.queue_bytes_max)
        self.changes.capacity = True

    def set_policy(self, policy: str, remote_prefill: str) -> None:
        """An empty argument leaves its value as it is. A pooling model has a policy of its own."""
        if self.pooling:
            return
        self.placement_memory.set_options(policy, remote_prefill)
        self.changes.capacity = True

    def end_rebuild(self) -> None:
        """From now on the queue is placed."""
        self.rebuilding, self.changes.capacity = False, True

    def check_invariants(self) -> None:
        """Raises AssertionError."""
        self.waiting.check_invariants()
        self.placement_memory.check_invariants()
        self.adapter_orders.check_invariants()
        self.quarantine.check_invariants()
        self.degradation.check_invariants()
        self.scale.check_invariants()
        queued = {attempt.key for attempt in self.waiting}
        for key, attempt in self.attempts.items():
            assert key == attempt.key
            assert attempt.model == self.model
            assert (attempt.state is AttemptState.QUEUED) == (key in queued), f"{key} and the queue"
            self._check_attempt(attempt)
        assert self.abandoned.keys() <= self.attempts.keys()
        assert self.leaving.keys() <= self.attempts.keys()
        assert self.newest.items() <= self.attempts.keys()
        assert len(queued) == len(self.waiting)
        assert queued <= self.attempts.keys()
        if self.limits.max_active:
            adopted = sum(attempt.adopted for attempt in self.attempts.values())
            assert self.active <= max(self.limits.max_active, self.active_before) + adopted
        self._check_admission()
        for identity, worker in self.workers.items():
            assert (worker.role is Role.POOL) == (identity in self.pools)
            self._check_worker(worker)
        assert self.pools.keys() <= self.workers.keys()

    def _check_admission(self) -> None:
        state = self.admission
        assert state.charged <= self.attempts.keys()
        state.reservations.check_invariants()
        assert sum(state.live) == len(self.attempts)
        assert state.awaiting_first_token.keys() <= self.attempts.keys()

    def _check_attempt(self, attempt: Attempt) -> None:
        key = attempt.key
        assert attempt.abandoned == (key in self.abandoned)
        assert (attempt.leaves_by is not None) == (key in self.leaving)
        assert attempt.number <= self.newest.get(attempt.request_id, attempt.number)
        assert key in self.gateways[attempt.gateway].attempts
        if attempt.state is AttemptState.QUEUED:
            assert attempt.placement is None
            return
        assert attempt.state in ON_WORKER, f"{key} is over and still in the table"
        assert not attempt.body, f"{key} keeps its body after placement"
        assert attempt.placement is not None
        decode = self.workers[attempt.decode]
        assert key in decode.held, f"{key} holds no credit on {decode.name}"
        if attempt.prefill_open:
            prefill = self.workers[attempt.prefill]
            assert key in prefill.held
            assert may_give(prefill, decode)

    def _check_worker(self, worker: Worker) -> None:
        block_tokens = worker.capacity.block_tokens
        promised = worker.held_tokens + worker.preexisting_kv_tokens
        assert promised % block_tokens == 0, f"{worker.name}: not in whole blocks"
        assert worker.kv_tokens_max % block_tokens == 0
        assert worker.held_tokens == sum(worker.held.values())
        assert worker.queued_tokens == sum(worker.computing.values())
        assert worker.computing.keys() <= worker.held.keys()
        assert worker.decoding.keys() <= worker.held.keys()
        if not worker.held:
            return
        assert not worker.away, f"{worker.name} is {worker.state.value}"
        assert worker.role is not Role.POOL
        adopted = False
        for key in worker.held:
            attempt = self.attempts[key]
            adopted |= attempt.adopted
            assert attempt.prefill != attempt.decode
            if attempt.decode == worker.identity:
                assert worker.role.decodes
            else:
                assert worker.role.prefills
                assert attempt.prefill == worker.identity
                assert attempt.prefill_open
        if not adopted:
            assert promised <= worker.kv_tokens_max, f"{worker.name} over"
            ahead = self.settings.slots_ahead_max if worker.role.decodes else 0.0
            assert len(worker.held) <= worker.capacity.requests_max(ahead)
