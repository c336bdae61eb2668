"""The rows of the router's tables: a try, a worker, a gateway. Each keeps its own sums."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

from common.messages import (
    Beat,
    Capacity,
    DecodeStarted,
    Ended,
    Hello,
    KeyLimits,
    KvCounts,
    KvHold,
    KvUnreachable,
    Load,
    Opinion,
    PrefillEnded,
    PriorityClass,
    Role,
)
from services.router.placement_types import Ask, Placement, WaitFor, WorkerView
from services.router.state import (
    AWAY,
    TRY_TRANSITIONS,
    WORKER_TRANSITIONS,
    TryState,
    WorkerState,
    checked,
)

Key = tuple[str, int]
LOST_MAX = 1_024


@dataclass(slots=True)
class Try:
    """One attempt of one request, and its timeline. Instants are the core's `now`.

    `prefill_open`: P may still hold something for it. `body` is kept only while queued. `batch`:
    streams that D decoded when this one began. `avoid`: identity of a D that it has left.
    `digest`: of its prompt.
    `output_tokens`, `cost`: predicted (`admission/cost.py`). `start_by`: when it is too late to
    place it; 0 = never. `adopted`: a worker was found holding it; another router placed it, or this
    one before a restart.
    """

    request_id: str
    attempt: int
    gateway: str
    ask: Ask
    body: bytes
    received: float
    deadline: float = 0.0
    key_id: str = ""
    tenant: str = ""
    priority: PriorityClass = PriorityClass.STANDARD
    resumable: bool = False
    avoid: str = ""
    digest: bytes = b""
    limits: KeyLimits | None = None
    weight: float = 1.0
    output_tokens: int = 0
    cost: float = 0.0
    start_by: float = 0.0
    state: TryState = TryState.QUEUED
    waits_for: WaitFor | None = None
    passed_by: int = 0
    placement: Placement | None = None
    prefill_open: bool = False
    placed: float | None = None
    prefill_ended: float | None = None
    decode_started: float | None = None
    batch: int = 0
    finished: float | None = None
    prefill_report: PrefillEnded | None = None
    decode_report: DecodeStarted | None = None
    prefill_problem: str = ""
    end_report: Ended | None = None
    outcome: str = ""
    sentence: str = ""
    adopted: bool = False
    key: Key = field(init=False)

    def __post_init__(self) -> None:
        self.key = (self.request_id, self.attempt)

    @property
    def decode(self) -> str:
        """Identity of its D, or empty."""
        return self.placement.decode.identity if self.placement else ""

    @property
    def prefill(self) -> str:
        """Identity of its P, or empty."""
        if self.placement is None or self.placement.prefill is None:
            return ""
        return self.placement.prefill.identity

    def forget_prefix(self) -> None:
        """Once it is placed or over, its hashes are of no more use."""
        if self.ask.prefix:
            self.ask = self.ask._replace(prefix=())

    def move(self, new: TryState) -> None:
        self.state = checked(self.key, TRY_TRANSITIONS, self.state, new)


@dataclass(slots=True)
class Worker:
    """One incarnation of a prefill or decode worker.

    `changed`: where it notes that its snapshot is stale (`board.py`).
    `held`: KV tokens promised, by try. `computing`: prompt tokens that it was given to compute and
    has not computed yet, by try. `decoding`: tries whose first token D has made. `given`: number of
    the last placement that it was part of.
    `foreign_tokens`, `foreign_requests`: what its engine held when it joined and has not freed
    since, that is, work of an earlier router. `orphans`: tries given up while it was out of reach,
    to be aborted when it comes back. `slots`: requests it may be given now, fewer than it has while
    it starts slowly, from `ramp_from` on. `returned`: it was away, or is a new incarnation of one
    that was, and starts slowly when it is ready. `empty_since`: first of the latest row of Beats
    that showed an engine without work. `kv_*`: what its KV plane told last, at `kv_seen`.
    `flaps`: times that it was doubted of late, the last at `flapped_at`; `sound_since`: since when
    it has shown no fault after that. `left`: it drained before it went. `served`: it was ready at
    least once. `unconfirmed`: what it was given before its latest Hello, until it says what it
    holds. `drained`: by an operator, `drain_ordered` until it has heard so. `opinion`: what its
    host's health daemon has against it; `barred`: it gets nothing new for that. `kv_tokens_max`:
    what may be granted of its KV, in tokens.
    """

    identity: str
    role: Role
    name: str
    incarnation: str
    fingerprint: str
    model: str
    kv_address: str
    pid: int
    capacity: Capacity
    kv_grant_max: float
    changed: dict[str, Worker]
    last_seen: float
    since: float
    state: WorkerState = WorkerState.JOINING
    before_suspect: WorkerState = WorkerState.JOINING
    reason: str = ""
    load: Load = field(default_factory=Load)
    held: dict[Key, int] = field(default_factory=dict)
    computing: dict[Key, int] = field(default_factory=dict)
    decoding: dict[Key, None] = field(default_factory=dict)
    fingerprint_parts: dict[str, str] = field(default_factory=dict)
    held_tokens: int = 0
    queued_tokens: int = 0
    given: int = 0
    foreign_tokens: int = 0
    foreign_requests: int = 0
    empty_since: float | None = None
    kv_counts: KvCounts | None = None
    kv_holds: tuple[KvHold, ...] = ()
    kv_holds_total: int = 0
    kv_seen: float = 0.0
    kv_unreachable: tuple[KvUnreachable, ...] = ()
    slots: int = 0
    ramp_from: float | None = None
    returned: bool = False
    orphans: list[Key] = field(default_factory=list)
    flaps: int = 0
    flapped_at: float = 0.0
    sound_since: float | None = None
    left: bool = False
    unconfirmed: dict[Key, None] = field(default_factory=dict)
    drained: bool = False
    drain_ordered: bool | None = None
    opinion: Opinion | None = None
    barred: bool = False
    kv_tokens_max: int = field(init=False)
    kv_token_bytes: float = field(init=False)

    def __post_init__(self) -> None:
        capacity = self.capacity
        granted = int(capacity.kv_blocks * self.kv_grant_max)
        self.kv_tokens_max = granted * capacity.block_tokens
        self.kv_token_bytes = capacity.kv_block_bytes / capacity.block_tokens

    @classmethod
    def of(
        cls,
        identity: str,
        hello: Hello,
        capacity: Capacity,
        grant: float,
        changed: dict[str, Worker],
        now: float,
    ) -> Worker:
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
            kv_grant_max=grant,
            changed=changed,
            last_seen=now,
            since=now,
            slots=capacity.max_num_seqs,
        )

    @property
    def ready(self) -> bool:
        return self.state is WorkerState.READY and not (self.drained or self.barred)

    @property
    def shown(self) -> str:
        """Its state, for an operator."""
        if self.drained and self.state is WorkerState.READY:
            return "draining" if self.held else "drained"
        return "down" if self.barred and self.state is WorkerState.READY else self.state.value

    @property
    def connected(self) -> bool:
        return self.state is not WorkerState.GONE

    @property
    def away(self) -> bool:
        """Nothing is expected of it, and nothing it says of requests counts."""
        return self.state in AWAY

    def move(self, new: WorkerState, reason: str, now: float) -> None:
        was, self.state = (
            self.state,
            checked(self.name, WORKER_TRANSITIONS, self.state, new),
        )
        self.returned |= was in AWAY
        if self.ready and self.returned:
            self.returned, self.ramp_from = False, now
        self.reason, self.since = reason, now
        self.changed[self.identity] = self

    def set_drained(self, drained: bool) -> None:
        self.drained = drained
        self.changed[self.identity] = self

    def set_barred(self, barred: bool) -> bool:
        """True if that is a change."""
        if barred is self.barred:
            return False
        self.barred = barred
        self.changed[self.identity] = self
        return True

    def hold(self, key: Key, tokens: int) -> None:
        """Promises KV for a try, once."""
        assert key not in self.held
        self.held[key] = tokens
        self.held_tokens += tokens
        self.changed[self.identity] = self

    def release(self, key: Key) -> None:
        """Idempotent."""
        self.held_tokens -= self.held.pop(key, 0)
        self.decoding.pop(key, None)
        self.queued_tokens -= self.computing.pop(key, 0)
        self.changed[self.identity] = self

    def decodes(self, key: Key) -> None:
        """Its first token is made; it is in the batch until released."""
        self.decoding[key] = None
        self.changed[self.identity] = self

    def queue(self, key: Key, tokens: int) -> None:
        self.computing[key] = tokens
        self.queued_tokens += tokens
        self.changed[self.identity] = self

    def computed(self, key: Key) -> None:
        """Idempotent."""
        self.queued_tokens -= self.computing.pop(key, 0)
        self.changed[self.identity] = self

    def reported(self, load: Load, now: float) -> bool:
        """A Beat. What is foreign can only shrink, save while joining. True if it did: there is
        room that was not there before."""
        foreign = (self.foreign_tokens, self.foreign_requests)
        used = round(load.kv_used * self.capacity.kv_blocks) * self.capacity.block_tokens
        requests = load.running + load.waiting
        if self.state is WorkerState.JOINING:
            self.foreign_tokens = max(0, used - self.held_tokens)
            self.foreign_requests = max(0, requests - len(self.held))
        else:
            self.foreign_tokens = min(self.foreign_tokens, used)
            self.foreign_requests = min(self.foreign_requests, requests)
        empty = not requests and not used
        self.empty_since = (self.empty_since or now) if empty else None
        self.load = load
        self.changed[self.identity] = self
        return (self.foreign_tokens, self.foreign_requests) != foreign

    def told_kv(self, beat: Beat, now: float) -> None:
        self.kv_counts, self.kv_holds = beat.kv_counts, beat.kv_holds
        self.kv_holds_total, self.kv_seen = beat.kv_holds_total, now
        self.kv_unreachable = beat.kv_unreachable

    def view(self) -> WorkerView:
        """The snapshot that placement sees. Taken several times for each request, so its fields are
        given by place: by name they cost three times as much."""
        return WorkerView(
            self.name,
            self.identity,
            self.incarnation,
            self.fingerprint,
            self.kv_address,
            self.capacity.block_tokens,
            self.capacity.max_model_len,
            self.held_tokens + self.foreign_tokens,
            self.kv_tokens_max,
            len(self.held) + self.foreign_requests,
            self.slots,
            self.queued_tokens,
            len(self.decoding),
            self.given,
            self.kv_token_bytes,
            self.fingerprint_parts,
        )


@dataclass(slots=True)
class Gateway:
    """One incarnation of a gateway. `tries`: its live ones. `lost`: the latest placed tries that
    failed or were given up while it was out of reach; it hears `Failed` for them again whenever it
    says Hello, for what was under way to it when its connection closed is lost. `unqueued`: tries
    taken from the queue while it was out of reach; it submits them again after a Hello, and hears
    `Failed` if it comes back without one, never having noticed. `unconfirmed`: its tries at its
    latest Hello, until it says which it still wants."""

    identity: str
    name: str
    incarnation: str
    stream_endpoint: str
    pid: int
    last_seen: float
    since: float
    gone: bool = False
    leaving: bool = False
    reason: str = ""
    tries: dict[Key, None] = field(default_factory=dict)
    unconfirmed: dict[Key, None] = field(default_factory=dict)
    unqueued: list[Key] = field(default_factory=list)
    lost: deque[Key] = field(default_factory=lambda: deque(maxlen=LOST_MAX))


@dataclass(slots=True)
class Counts:
    """Since the start. `dropped` and `refused` by reason."""

    submitted: int = 0
    placed: int = 0
    placed_local: int = 0
    adopted: int = 0
    ended: int = 0
    failed: int = 0
    cancelled: int = 0
    refused: dict[str, int] = field(default_factory=dict)
    dropped: dict[str, int] = field(default_factory=dict)

    def refuse(self, code: str) -> None:
        self.refused[code] = self.refused.get(code, 0) + 1

    def drop(self, why: str) -> None:
        self.dropped[why] = self.dropped.get(why, 0) + 1
