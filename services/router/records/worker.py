"""The row of a worker, with the sums over what it holds."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

from common.identity import AttemptKey
from common.messages import (
    AdapterStatus,
    Beat,
    Capacity,
    HealthVerdict,
    Hello,
    KvCounts,
    KvHold,
    KvUnreachable,
    Load,
    PhaseReport,
    Role,
    WarmState,
)
from services.router.placement.types import TYPICAL, Speed, WorkerView
from services.router.records.adapters import HeldAdapters, held_adapters
from services.router.records.attempt import Attempt
from services.router.records.changes import Changes
from services.router.records.pace import Pace
from services.router.records.role import RoleState
from services.router.records.states import AWAY, WORKER_TABLE, WorkerEvent, WorkerState, next_state

ABANDONED_MAX = 256
UNKNOWN = Capacity(block_tokens=1, kv_blocks=0, kv_block_bytes=0, max_model_len=0, max_num_seqs=0)
"""That of a pool that does not know yet what it will hold."""


@dataclass(slots=True)
class Worker:
    """One incarnation of a worker, or of a pool, which is given no requests.
    Instants are seconds on the core's clock."""

    #: `name|incarnation`, its ZeroMQ identity.
    identity: str
    role: Role
    name: str
    incarnation: str
    #: Workers may exchange KV as it lies in memory only when their fingerprints are equal.
    fingerprint: str
    #: The model that its engine serves.
    model: str
    #: Where its KV plane listens.
    kv_address: str
    pid: int
    #: What its engine can hold at most.
    capacity: Capacity
    #: Share of its KV tokens that may be promised.
    kv_grant_max: float
    #: Where it notes what changed.
    changes: Changes
    #: Which role it is to have.
    role_state: RoleState
    #: When its last message arrived.
    last_seen: float
    #: When its state last changed.
    since: float
    #: The host whose key it has; empty where no keys are asked for.
    host: str = ""
    state: WorkerState = WorkerState.JOINING
    #: The state to which it returns when it is trusted again.
    before_suspect: WorkerState = WorkerState.JOINING
    #: Why it is in its state, for an operator.
    reason: str = ""
    #: What its latest Beat reported of its engine.
    load: Load = field(default_factory=Load)
    #: KV tokens promised, by attempt.
    held: dict[AttemptKey, int] = field(default_factory=dict)
    #: Prompt tokens that it has to compute and has not computed yet, by attempt.
    computing: dict[AttemptKey, int] = field(default_factory=dict)
    #: The latest attempts that ended before it had computed their prompt, until its next Beat:
    #: one of them may be why it is found dead before that.
    abandoned: deque[Attempt] = field(default_factory=lambda: deque(maxlen=ABANDONED_MAX))
    #: Attempts whose first token it has made.
    decoding: dict[AttemptKey, None] = field(default_factory=dict)
    #: The named parts from which its fingerprint was computed.
    fingerprint_parts: dict[str, str] = field(default_factory=dict)
    #: Sum of `held`.
    held_tokens: int = 0
    #: When requests of the lowest class begin on it.
    pace: Pace = field(default_factory=Pace)
    #: Sum of `computing`.
    queued_tokens: int = 0
    #: Serial number of the last placement that used it; 0 = none yet.
    last_placed_serial: int = 0
    #: KV tokens that its engine held when it joined and has not freed since.
    preexisting_kv_tokens: int = 0
    #: Requests that its engine had when it joined and has not ended since.
    preexisting_requests: int = 0
    #: Since when its Beats have shown an engine without work; None = the latest showed work.
    idle_since: float | None = None
    #: Counters of its KV plane; None = it reported none.
    kv_counts: KvCounts | None = None
    #: KV that it holds for other workers, the oldest first, cut at the wire's limit.
    kv_holds: tuple[KvHold, ...] = ()
    #: How many such holds there are, whether listed or not.
    kv_holds_total: int = 0
    #: What it computes in each phase; None = it did not say.
    phases: PhaseReport | None = None
    #: When the KV status arrived.
    kv_seen: float = 0.0
    #: Prefill workers that it cannot reach.
    kv_unreachable: tuple[KvUnreachable, ...] = ()
    #: Requests that it may have now; fewer than `max_num_seqs` in its slow start.
    slots: int = 0
    speed: Speed = TYPICAL
    #: When its slow start began; None = it is not in one.
    ramp_from: float | None = None
    #: Whether it was away, or replaces an incarnation that was here; it will start slowly.
    returned: bool = False
    #: Attempts given up while it was out of reach, to be aborted when it returns.
    orphans: list[AttemptKey] = field(default_factory=list)
    #: How often it was suspected or lost in the last flap window.
    flaps: int = 0
    #: When the last flap was.
    flapped_at: float = 0.0
    #: Since when it has shown no fault after a flap; None = the fault stands.
    faultless_since: float | None = None
    #: Whether it had drained before it went.
    left_drained: bool = False
    #: Attempts that it held at its latest Hello, until it reports which of them it still holds.
    unconfirmed: dict[AttemptKey, None] = field(default_factory=dict)
    #: Whether an operator drained it: it gets nothing new.
    drained: bool = False
    #: An operator's order that its Beats do not repeat yet; None = there is none.
    drain_ordered: bool | None = None
    #: Since when its streams are to leave it; None = they are not.
    emptying_since: float | None = None
    #: When an operator's eviction drops what has not moved by then; None = nothing is dropped.
    drop_at: float | None = None
    #: Decode workers: when it was told to connect to another decode worker, by identity.
    introduced: dict[str, float] = field(default_factory=dict)
    #: What the health daemon of its host has against it; None = nothing.
    health_verdict: HealthVerdict | None = None
    #: The LoRA adapters that it has, as it reported them, and as placement reads them.
    adapter_statuses: tuple[AdapterStatus, ...] = ()
    adapters: HeldAdapters = field(default_factory=dict)
    #: Whether it gets nothing new because of that verdict.
    excluded: bool = False
    #: Whether it sleeps; None of a worker that never does.
    warm: WarmState | None = None
    #: Whether it was last ordered to be awake, and when; None = no order since it last obeyed.
    wake_ordered: tuple[bool, float] | None = None
    #: Those of its role in `changes`; none of pools. Every change of what `view` reads adds it.
    stale_snapshots: dict[str, Worker] = field(init=False)
    #: KV tokens that may be promised, in whole blocks.
    kv_tokens_max: int = field(init=False)
    #: KV bytes per token.
    kv_token_bytes: float = field(init=False)

    def __post_init__(self) -> None:
        self.stale_snapshots = self.changes.stale_snapshots.get(self.role, {})
        self._measure()

    def _measure(self) -> None:
        capacity = self.capacity
        granted = int(capacity.kv_blocks * self.kv_grant_max)
        self.kv_tokens_max = granted * capacity.block_tokens
        self.kv_token_bytes = capacity.kv_block_bytes / capacity.block_tokens

    @classmethod
    def from_hello(
        cls,
        identity: str,
        hello: Hello,
        capacity: Capacity,
        kv_grant_max: float,
        changes: Changes,
        now: float,
    ) -> Worker:
        changes.availability = True
        return cls(
            identity=identity,
            role=hello.role,
            name=hello.name,
            incarnation=hello.incarnation,
            fingerprint=hello.fingerprint,
            fingerprint_parts=hello.fingerprint_parts,
            model=hello.model,
            kv_address=hello.kv_address,
            pid=hello.pid,
            capacity=capacity,
            kv_grant_max=kv_grant_max,
            changes=changes,
            last_seen=now,
            since=now,
            slots=capacity.max_num_seqs,
            role_state=RoleState.from_hello(hello, now),
            adapter_statuses=hello.adapters,
            adapters=held_adapters(hello.adapters),
        )

    def learn_layout(self, hello: Hello, capacity: Capacity) -> None:
        """A pool knows now what it holds."""
        self.fingerprint, self.fingerprint_parts = hello.fingerprint, hello.fingerprint_parts
        self.kv_address, self.capacity = hello.kv_address, capacity
        self._measure()

    @property
    def ready(self) -> bool:
        """Whether it may be given requests, or a pool blocks."""
        barred = self.drained or self.excluded or self.asleep or self.next_role is not None
        return self.state is WorkerState.READY and not barred

    @property
    def home(self) -> tuple[Role, str]:
        """By what it is known whichever role it has: the role of the fleet file, and its name."""
        return self.role_state.configured or self.role, self.name

    @property
    def next_role(self) -> Role | None:
        """The role that it was ordered to take, told yet or not; None = it keeps its own."""
        ordered = self.role_state.ordered or self.role_state.becomes
        return ordered if ordered is not self.role else None

    @property
    def asleep(self) -> bool:
        return self.warm is not None and self.warm.asleep

    @property
    def availability(self) -> str:
        """Whether it may be given requests, and if not, why; for an operator."""
        if self.state is not WorkerState.READY or self.ready:
            return self.state.value
        if self.drained or self.excluded:
            return "drained" if self.drained else "down"
        return "warm" if self.asleep else "switching"

    @property
    def display_state(self) -> str:
        """Its state, for an operator."""
        return "draining" if self.availability == "drained" and self.held else self.availability

    @property
    def connected(self) -> bool:
        return self.state is not WorkerState.GONE

    @property
    def away(self) -> bool:
        """Whether it is given up: nothing is expected of it, and its reports do not count."""
        return self.state in AWAY

    def apply(self, event: WorkerEvent, reason: str, now: float) -> None:
        """Raises IllegalTransitionError."""
        was = self.state
        self.state = next_state(self.name, WORKER_TABLE, was, event)
        self.returned |= was in AWAY
        if self.ready and self.returned:
            self.returned, self.ramp_from = False, now
        self.reason, self.since = reason, now
        self._note_availability()

    def set_drained(self, drained: bool) -> None:
        self.drained = drained
        self._note_availability()

    def set_role_order(self, ordered: Role | None, becomes: Role | None) -> None:
        """`ordered`: what it was told and does not repeat yet; `becomes`: what it says."""
        before = self.next_role
        self.role_state.ordered, self.role_state.becomes = ordered, becomes
        if self.next_role is not before:
            self._note_availability()

    def set_excluded(self, excluded: bool) -> bool:
        """Returns whether that is a change."""
        if excluded is self.excluded:
            return False
        self.excluded = excluded
        self._note_availability()
        return True

    def set_warm(self, warm: WarmState | None, now: float) -> bool:
        """Takes what a Beat says. One that has just woken has been idle for no time. Returns
        whether it fell asleep or woke."""
        was, self.warm = self.asleep, warm
        if self.wake_ordered is not None and self.wake_ordered[0] is not self.asleep:
            self.wake_ordered = None
        if was is self.asleep:
            return False
        self.idle_since, self.since = None if self.asleep else now, now
        self._note_availability()
        return True

    def set_slots(self, slots: int, *, patient: bool = False) -> None:
        if (slots, patient) != (self.slots, self.speed.patient):
            self.slots, self.speed = slots, self.speed._replace(patient=patient)
            self.changes.capacity = True
            self.stale_snapshots[self.identity] = self

    def hold(self, key: AttemptKey, tokens: int, *, before: int = 0) -> None:
        """Promises KV to an attempt: once, or more or less than `before`."""
        assert self.held.get(key, 0) == before
        self.held[key] = tokens
        self.held_tokens += tokens - before
        self.stale_snapshots[self.identity] = self

    def release(self, key: AttemptKey) -> None:
        """Takes back all that the attempt was promised. Idempotent."""
        self.held_tokens -= self.held.pop(key, 0)
        self.decoding.pop(key, None)
        self.queued_tokens -= self.computing.pop(key, 0)
        self.stale_snapshots[self.identity] = self

    def abandon(self, attempt: Attempt) -> None:
        """As `release`; the worker need not compute the prompt any more."""
        if attempt.key in self.computing:
            self.abandoned.append(attempt)
        self.release(attempt.key)

    def start_prompt(self, key: AttemptKey, tokens: int) -> None:
        """It was given a prompt to compute."""
        self.computing[key] = tokens
        self.queued_tokens += tokens
        self.stale_snapshots[self.identity] = self

    def finish_prompt(self, key: AttemptKey) -> None:
        """Idempotent."""
        self.queued_tokens -= self.computing.pop(key, 0)
        self.stale_snapshots[self.identity] = self

    def start_decoding(self, key: AttemptKey) -> None:
        """The attempt's first token is made; it is in the batch until it is released."""
        self.decoding[key] = None
        self.stale_snapshots[self.identity] = self

    def update_load(self, load: Load, now: float) -> None:
        """Takes the engine's load from a Beat. What it held before it joined is learned while it
        joins; afterwards that can only shrink, and if it does, there is new room."""
        before = (self.preexisting_kv_tokens, self.preexisting_requests)
        used = round(load.kv_used * self.capacity.kv_blocks) * self.capacity.block_tokens
        requests = load.running + load.waiting
        if self.state is WorkerState.JOINING:
            self.preexisting_kv_tokens = max(0, used - self.held_tokens)
            self.preexisting_requests = max(0, requests - len(self.held))
        else:
            self.preexisting_kv_tokens = min(self.preexisting_kv_tokens, used)
            self.preexisting_requests = min(self.preexisting_requests, requests)
        self.idle_since = None if requests or used else self.idle_since or now
        self.load = load
        self.changes.capacity |= before != (self.preexisting_kv_tokens, self.preexisting_requests)
        self.stale_snapshots[self.identity] = self

    def update_adapters(self, statuses: tuple[AdapterStatus, ...]) -> None:
        if statuses == self.adapter_statuses:
            return
        self.adapter_statuses, held = statuses, held_adapters(statuses)
        self.changes.availability |= held.keys() != self.adapters.keys()
        self.adapters = held
        self.stale_snapshots[self.identity] = self

    def loads_adapter(self, adapter: str) -> None:
        """It was given a request with this adapter, which will be in its memory."""
        if self.adapters.get(adapter):
            self.adapters = {**self.adapters, adapter: 0.0}
            self.stale_snapshots[self.identity] = self

    def update_kv_status(self, beat: Beat, now: float) -> None:
        self.kv_counts, self.kv_holds, self.phases = beat.kv_counts, beat.kv_holds, beat.phases
        self.kv_holds_total, self.kv_seen = beat.kv_holds_total, now
        self.kv_unreachable = beat.kv_unreachable

    def view(self) -> WorkerView:
        """The snapshot for placement. Fields are given by position: by name they cost thrice."""
        return WorkerView(
            self.name,
            self.identity,
            self.incarnation,
            self.fingerprint,
            self.kv_address,
            self.capacity.block_tokens,
            self.capacity.max_model_len,
            self.held_tokens + self.preexisting_kv_tokens,
            self.kv_tokens_max,
            len(self.held) + self.preexisting_requests,
            self.slots,
            self.queued_tokens,
            len(self.decoding),
            self.last_placed_serial,
            self.kv_token_bytes,
            self.fingerprint_parts,
            self.capacity.kv_groups,
            self.capacity.pull_blocks,
            self.adapters,
            self.role is Role.MIXED,
            *self.capacity.kv_form,
            *self.speed[:3],
        )

    def _note_availability(self) -> None:
        """Every change of what `ready` reads ends here."""
        self.stale_snapshots[self.identity] = self
        self.changes.availability = True
