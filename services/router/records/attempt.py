"""The row of an attempt: one try to serve a request, from its Submit to its end."""

from __future__ import annotations

from dataclasses import dataclass, field

from common.identity import AttemptKey
from common.messages import (
    DecodeStarted,
    Ended,
    KeyLimits,
    KvCheckpoint,
    OtherCell,
    PrefillEnded,
    PriorityClass,
)
from services.router.placement.budget import next_step
from services.router.placement.prefetch import BODY_BYTES_MAX, Prefetched
from services.router.placement.types import Placement, ResourceRequest, WaitFor, WorkerView
from services.router.records.move import MoveOrder, MoveReason
from services.router.records.states import ATTEMPT_TABLE, AttemptEvent, AttemptState, next_state


@dataclass(slots=True)
class Attempt:
    """One attempt of a request. Instants are seconds on the core's clock, as `now` is."""

    #: The client's request, the same for all of its attempts.
    request_id: str
    #: Which attempt of its request it is, from 1 on.
    number: int
    #: Identity of the gateway that submitted it.
    gateway: str
    #: What it needs of the workers.
    request: ResourceRequest
    #: The encoded prompt, as the gateway sent it; empty once it left the queue.
    body: bytes
    #: When its Submit arrived.
    received: float
    #: Name of the model that it asks for.
    model: str = ""
    #: When its client stops waiting; 0 = never.
    deadline: float = 0.0
    #: The API key that pays for it.
    key_id: str = ""
    #: The tenant in whose name it waits in the queue.
    tenant: str = ""
    priority: PriorityClass = PriorityClass.STANDARD
    #: Whether its gateway can continue the stream exactly after a preemption.
    resumable: bool = False
    #: Whether no client reads its stream now; set with `Tables.set_abandoned`.
    abandoned: bool = False
    #: Identity of the decode worker that the previous attempt left; empty = none.
    avoid: str = ""
    #: Identity of the decode worker that gave the previous attempt up and keeps its KV; empty =
    #: none.
    moved_from: str = ""
    #: Identity of the worker whose store has copies of what the attempts before it filled; empty =
    #: none.
    copies_at: str = ""
    #: How many leading blocks it had, as far as is known.
    copied_blocks: int = 0
    #: Identity of the worker whose store gets copies of its blocks; empty = none.
    holder: str = ""
    #: How far these copies are, as its decode worker reported last.
    checkpoint: KvCheckpoint | None = None
    #: The order by which it came from there; None = there was none, or it is not known here.
    came_by: MoveOrder | None = None
    #: When this request last moved, and when it was last parked: ended to make room for another; in
    #: whichever attempt. None = never.
    moved_at: float | None = None
    parked_at: float | None = None
    #: Whether this attempt was parked, and whether the one before it was.
    parked: bool = False
    follows_parked: bool = False
    #: The order to leave its decode worker; set with `Tables.order_move`. None = it may stay.
    leaves_by: MoveOrder | None = None
    #: The names of its prompt's leading blocks (`common.prefix`), joined, also when it is over.
    names: bytes = b""
    #: Digest of its prompt, by which a prompt that kills workers is recognized; the request's id if
    #: its gateway gave none.
    digest: bytes = b""
    #: Whether it runs alone, because its prompt is suspected to have killed workers.
    trial: bool = False
    #: Limits of its API key; None = the key has none.
    limits: KeyLimits | None = None
    #: What its key does in another cell; None = nothing that counts here.
    other_cell: OtherCell | None = None
    #: Share of its tenant in the fair queue, relative to other tenants.
    weight: float = 1.0
    #: Bytes of KV that it is promised at a time; 0 = all that it may need.
    budget_bytes: int = 0
    #: At how many tokens its decode worker tells that it comes near to what it is promised.
    kv_tokens_near: int = 0
    #: How often it was promised more where it runs.
    grants: int = 0
    #: Predicted tokens of the answer.
    output_tokens: int = 0
    #: Predicted cost (`admission/keys.py`).
    cost: float = 0.0
    #: After this instant its first token would come too late; 0 = there is no such instant.
    start_by: float = 0.0
    state: AttemptState = AttemptState.QUEUED
    #: What it lacked when placement last looked at it; None = it was not looked at or is placed.
    waits_for: WaitFor | None = None
    #: How many later attempts were placed before it.
    passed_by: int = 0
    #: Whether it was looked at before its turn, and which worker was told of it then; None: none.
    looked_ahead: bool = False
    prefetch: Prefetched | None = None
    #: Where it was placed, and why; None while it is queued.
    placement: Placement | None = None
    #: Whether its prefill worker may still hold KV for it.
    prefill_open: bool = False
    #: When it was placed.
    placed: float | None = None
    #: When the report of its prefill worker arrived.
    prefill_ended: float | None = None
    #: When the report of its first token arrived.
    decode_started: float | None = None
    #: Streams that its decode worker had when its first token was made, itself included.
    batch: int = 0
    #: When it left the tables.
    finished: float | None = None
    #: What its prefill worker reported.
    prefill_report: PrefillEnded | None = None
    #: What its decode worker reported at the first token.
    decode_report: DecodeStarted | None = None
    #: Why its prefill worker was of no use, for an operator; empty = it was not so.
    prefill_problem: str = ""
    #: What its decode worker reported at the end.
    end_report: Ended | None = None
    #: A finish reason or an error code; empty while it is live.
    outcome: str = ""
    #: The reason for its end, for an operator.
    sentence: str = ""
    #: Whether this router found it on a worker instead of placing it: another router did, or this
    #: one before a restart.
    adopted: bool = False
    key: AttemptKey = field(init=False)

    def __post_init__(self) -> None:
        self.key = (self.request_id, self.number)
        self.digest = self.digest or self.request_id.encode()

    @property
    def decode(self) -> str:
        """Identity of its decode worker; empty = none."""
        return self.placement.decode.identity if self.placement else ""

    @property
    def prefill(self) -> str:
        """Identity of its prefill worker; empty = none."""
        if self.placement is None or self.placement.prefill is None:
            return ""
        return self.placement.prefill.identity

    @property
    def may_prefetch(self) -> bool:
        """Whether a worker may be told of it before its turn. What moves brings its KV along."""
        plain = not (self.moved_from or self.copies_at or self.request.local_reason)
        return plain and bool(self.request.prefix) and len(self.body) <= BODY_BYTES_MAX

    @property
    def moving(self) -> bool:
        """Whether its decode worker was told to give it up, so that it goes on elsewhere."""
        return self.leaves_by is not None and self.leaves_by.told is not None

    @property
    def move_reason(self) -> MoveReason:
        """Of an attempt that came from another decode worker."""
        return self.came_by.reason if self.came_by is not None else MoveReason.UNORDERED

    def promise(self, view: WorkerView) -> ResourceRequest:
        """What a queued attempt asks for, with its budget, which is known once a decode worker is.
        What cannot go on elsewhere is promised all. `view`: of any decode worker."""
        request = self.request
        if self.budget_bytes and not request.kv_tokens and self.resumable:
            tokens, total = request.prompt_tokens, request.total_tokens
            step = next_step(tokens, total, self.budget_bytes, view)
            self.request = request._replace(kv_tokens=step.tokens)
            self.kv_tokens_near = step.near
        return self.request

    def follow_copies(self, before: Attempt) -> None:
        """Where most blocks of the attempts before this one are, it goes on best. `before` may have
        been lost before its own holder had anything."""
        held = before.checkpoint.held if before.checkpoint is not None else 0
        lost = before.copies_at in ("", before.decode)
        if before.holder and (held >= before.copied_blocks or (held and lost)):
            self.copies_at, self.copied_blocks = before.holder, held
        else:
            self.copies_at, self.copied_blocks = before.copies_at, before.copied_blocks

    def drop_prompt(self) -> None:
        """Placement and the workers' copies are the last uses of the prompt and its hashes."""
        self.body = b""
        if self.request.prefix:
            self.request = self.request._replace(prefix=())

    def apply(self, event: AttemptEvent) -> None:
        """Raises IllegalTransitionError."""
        self.state = next_state(self.key, ATTEMPT_TABLE, self.state, event)
