"""What gateways and workers send to the router."""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta

from common.blocks import KV_GROUPS_MAX
from common.messages.kv_reports import KvCheckpoint, KvCounts, KvHold, KvReport
from common.messages.parts import (
    ADAPTER_CHARS_MAX,
    ADAPTER_PATH_CHARS_MAX,
    ADAPTERS_MAX,
    SCALE_ORDERS_MAX,
    AdapterStatus,
    Capacity,
    Count,
    HealthVerdict,
    HeldAttempt,
    KvUnreachable,
    Leg,
    Load,
    Message,
    Number,
    PhaseReport,
    PriorityClass,
    Role,
    ScaleOrder,
    WarmState,
)
from common.messages.request import KeyLimits, OtherCell

#: Attempts in one `Holding` or `Live`.
HOLDING_MAX = 2_048
#: Hashes in each list of one `PrefixDelta`.
PREFIX_DELTA_HASHES_MAX = 8_192

Adapters = Annotated[tuple[AdapterStatus, ...], Meta(max_length=ADAPTERS_MAX)]
AdapterText = Annotated[str, Meta(max_length=ADAPTER_CHARS_MAX)]


class Hello(Message, frozen=True):
    """The first message of every gateway and worker to the router, and of D to a gateway on a
    stream socket. Answered by `Welcome` or `Refused`. Nothing else from this peer is decoded before
    it. A worker that has changed its role says it again."""

    wire_version: int
    role: Role
    name: str
    #: New at every start of the process.
    incarnation: str
    pid: int = 0
    #: Workers: equal for workers that may exchange KV as it lies in memory.
    fingerprint: str = ""
    #: Workers: what the fingerprint is made of, for people who compare two.
    fingerprint_parts: dict[str, str] = msgspec.field(default_factory=dict)
    #: Workers: name of the model that the engine serves.
    model: str = ""
    #: Workers: `host:port` of the UCX listener.
    kv_address: str = ""
    #: Gateways: where the stream socket is bound.
    stream_endpoint: str = ""
    #: Workers: what the engine can hold.
    capacity: Capacity | None = None
    #: Workers: as in `Beat`.
    adapters: Adapters = ()
    #: Workers: the role of its table in the fleet file; None of one that cannot change its role.
    configured_role: Role | None = None
    #: Workers: how often it has changed its role since its process started.
    role_epoch: Count = 0
    #: Workers: milliseconds for which it has had its role.
    role_ms: Number = 0.0


class Beat(Message, frozen=True):
    """Gateway or worker, every 500 ms. No answer. Only workers set the fields. What concerns the KV
    plane is up to 500 ms old, and None or empty until the KV plane reported."""

    load: Load | None = None
    #: Counts of the KV plane.
    kv_counts: KvCounts | None = None
    #: Blocks held for other workers, at most the `KV_HOLDS_MAX` oldest.
    kv_holds: tuple[KvHold, ...] = ()
    #: How many such holds there are.
    kv_holds_total: Count = 0
    #: Whether the worker is drained, as the latest `Drain` ordered.
    drained: bool = False
    #: Prefill workers that D cannot reach, 64 at most.
    kv_unreachable: tuple[KvUnreachable, ...] = ()
    #: Streams whose blocks another holder gets, the latest 256 at most.
    kv_checkpoints: tuple[KvCheckpoint, ...] = ()
    #: Verdict of this host's health daemon; None if the worker is well or the daemon was silent.
    health_verdict: HealthVerdict | None = msgspec.field(default=None, name="opinion")
    #: Whether it sleeps; None of a worker that never does.
    warm: WarmState | None = None
    #: The LoRA adapters that the worker has, and those that it was told of and cannot serve.
    adapters: Adapters = ()
    #: The role that it takes as soon as it holds nothing (`Become`); None: it keeps its own.
    becomes: Role | None = None
    #: What it computes in each phase; None of a pool, and of an older worker.
    phases: PhaseReport | None = None


class Holding(Message, frozen=True):
    """Worker, in answer to every Welcome and before its next Beat: the attempts that it holds.

    An attempt that the router placed here before the Hello and does not find in a complete list is
    over. An attempt that the router does not know was placed by another router, or by itself before
    a restart. No answer."""

    #: The first `HOLDING_MAX` attempts.
    attempts: tuple[HeldAttempt, ...] = msgspec.field(default=(), name="tries")
    #: Whether there are no others.
    complete: bool = True


class Took(Message, frozen=True):
    """Worker, to every router but the one that placed it: this attempt holds capacity here now. The
    worker's reports go to all routers alike. No answer."""

    held: HeldAttempt


class Live(Message, frozen=True):
    """Gateway, in answer to every Welcome: the attempts that it still wants.

    An attempt that the router had of this gateway before the Hello and does not find in a complete
    list is aborted. Attempts that the gateway does not know to be placed follow as Submit. No
    answer."""

    #: Request id and attempt of the first `HOLDING_MAX`.
    attempts: tuple[tuple[str, Count], ...] = msgspec.field(default=(), name="tries")
    #: Whether there are no others.
    complete: bool = True


class Leaving(Message, frozen=True):
    """Gateway or worker that drains: place nothing new there. No answer; the connection closes
    later."""

    reason: str


class Submit(Message, frozen=True):
    """Gateway, + body: place this request. Answered by `Placed` or `Refused`, perhaps `Failed`."""

    request_id: str
    attempt: Count
    prompt_tokens: Count
    max_tokens: Count
    #: Name of the model that is asked for; empty is the only one of the fleet.
    model: str = ""
    #: Milliseconds that remain in which the first token is still wanted; 0 sets no deadline.
    deadline_ms: Number = 0.0
    #: Public id of the API key; empty for an anonymous client.
    key_id: str = ""
    #: Who shares capacity fairly with other tenants.
    tenant: str = ""
    #: Limits of the API key; None sets none.
    limits: KeyLimits | None = None
    priority: PriorityClass = PriorityClass.STANDARD
    #: The client's `x-session-id`.
    session: str = ""
    #: Why D must compute the prompt itself (prompt_logprobs); empty if it need not.
    local_reason: str = ""
    #: 8 bytes for each leading whole block of the prompt (`common.prefix`), salted by tenant, for
    #: placement by prefix. The list may be cut short.
    prefix_hashes: bytes = b""
    #: Whether its gateway can continue it on another worker after tokens were streamed, so that it
    #: may be preempted.
    resumable: bool = False
    #: Identity of the D of the previous attempt, if its gateway lost it or it fell silent. The
    #: request is placed there again only if there is no other.
    left: str = ""
    #: Identity of the D that gave the previous attempt up and keeps its KV; empty: none does.
    moved_from: str = ""
    #: Digest of the client's prompt, the same in every attempt, to know one that kills workers.
    prompt_digest: bytes = b""
    #: Whether no client reads its stream now (`Abandoned`).
    abandoned: bool = False
    #: As in the body.
    adapter: AdapterText = ""
    #: What its key does in another cell; None: nothing that counts in this one.
    other_cell: OtherCell | None = None


class Abandoned(Message, frozen=True):
    """Gateway: the client of this resumable stream left, or came back. While nobody reads it, the
    attempt waits behind all others and is the first to be preempted. Idempotent; no answer."""

    request_id: str
    attempt: Count
    #: Whether the client is gone.
    abandoned: bool = True


class Cancel(Message, frozen=True):
    """Gateway: it no longer wants this attempt, because the client left or a stop string matched.
    Idempotent; no answer."""

    request_id: str
    attempt: Count
    reason: str


class AskAdapter(Message, frozen=True):
    """Gateway, for a client with an operator's key: all workers of a model are to load this LoRA
    adapter, or to let it go. Answered by `AdapterTold`."""

    #: Chosen by the gateway, for the answer.
    ask_id: Count
    name: AdapterText
    #: Folder of its files on the workers' hosts; empty: let it go.
    path: Annotated[str, Meta(max_length=ADAPTER_PATH_CHARS_MAX)] = ""
    #: Name of the base model; empty: the only one, or the one that has the adapter.
    model: str = ""


class KeptOrders(Message, frozen=True):
    """Gateway, in answer to KeepOrder, and to the router that it begins to use: the orders for
    workers that it keeps, whichever router gave them. No answer."""

    orders: Annotated[tuple[ScaleOrder, ...], Meta(max_length=SCALE_ORDERS_MAX)] = ()


class RequestSummary(Message, frozen=True, tag="Journey"):
    """Gateway, once for every request that is over, except those that the router refused at once,
    of which it knows everything. No answer; it is lost if no router answers."""

    request_id: str
    #: Number of the last attempt.
    attempt: int
    #: `ended`, `failed`, or `closed` by the client.
    outcome: str
    #: The phases, which follow each other without a gap and sum to the whole.
    legs: tuple[Leg, ...]
    #: A `Code` if it failed, else empty.
    code: str = ""
    prompt_tokens: int = 0
    completion_tokens: int = 0
    #: Prompt tokens whose KV was computed before this request, by whichever worker.
    cached_tokens: int = 0
    #: Milliseconds to the first token; 0 if there was none.
    ttft_ms: float = 0.0
    #: Longest pause between two tokens in milliseconds; 0 if there was at most one.
    itl_ms_max: float = 0.0
    #: The client's `traceparent`, validated; else empty.
    traceparent: str = ""


class PrefillEnded(Message, frozen=True):
    """P: the prompt is computed, or failed. No answer."""

    request_id: str
    attempt: Count
    #: Milliseconds since the Prefill arrived.
    elapsed_ms: Number
    #: Prompt tokens whose KV was in P's prefix cache.
    cached_tokens: Count = 0
    #: A `Code`; empty if the prompt is computed.
    error: str = ""
    message: str = ""
    #: What P got out of another worker's store; None if it got nothing from there.
    pull: KvReport | None = None
    #: Why a pull failed, so that P computed the tokens.
    pull_failed: str = ""


class DecodeStarted(Message, frozen=True):
    """D: the first token was made. Once more, after `Ended`, if the handoff's report came so late.
    No answer."""

    request_id: str
    attempt: Count
    #: Milliseconds from the Decode's arrival to the first token.
    elapsed_ms: Number
    #: Prompt tokens whose KV was not computed by D.
    cached_tokens: Count = 0
    #: What the handoff moved; None if nothing was remote.
    kv: KvReport | None = None
    #: Milliseconds from the Decode's arrival until the remote KV was in place.
    kv_ms: float = 0.0


class CopiedAhead(Message, frozen=True):
    """D, once in answer to CopyAhead: the holder has all but a few of the stream's full blocks,
    or gets no more of them. None is sent of a stream that ended before. No answer."""

    request_id: str
    attempt: Count
    #: How many leading blocks of the stream the holder's store has.
    held: Count = 0
    #: Why it gets no more; empty if it has what it should have.
    message: str = ""


class BudgetReached(Message, frozen=True):
    """D, of a stream that is promised KV for a part of its tokens: its next step may bring it near
    to them (`GrantKv.kv_tokens_near`), to all of them, or to a block beyond. Answered by `GrantKv`
    or `Move`, or not at all: it goes on and tells again with its next block."""

    request_id: str
    attempt: Count
    #: Tokens of its prompt and its answer, and of its next step at most.
    tokens: Count


class PrefixDelta(Message, frozen=True):
    """Worker: what its store, or a KV cache group of its engine's prefix cache, gained and lost
    since the last one, as hashes of `common.prefix`. No answer; what is lost with a connection is
    sent again after `Welcome`."""

    #: Hashes of blocks that were stored.
    stored: bytes = b""
    #: Hashes of blocks that were removed.
    removed: bytes = b""
    #: Whether all earlier hashes of this worker in this medium, of any group, are to be forgotten
    #: first.
    cleared: bool = False
    #: The group, by its place in `Capacity.kv_groups`.
    group: Annotated[int, Meta(ge=0, lt=KV_GROUPS_MAX)] = 0
    #: Where the blocks are: `engine`, `store` (memory), or `disk`; others may pull of the two.
    medium: str = "engine"


class AdapterDone(Message, frozen=True):
    """A worker, in answer to `OrderAdapter`. Its Beats have the adapter from then on, or not. No
    answer."""

    name: AdapterText
    #: As in the order.
    path: str = ""
    #: Why it was not done, else empty.
    error: str = ""


class PairTrouble(Message, frozen=True):
    """A worker: taking KV from this other one failed for good, or its digests mismatched. The
    router does not pair the two for a while. No answer."""

    request_id: str
    attempt: Count
    #: Name of the prefill worker, or of the worker out of whose store it was pulled.
    prefill: str
    prefill_incarnation: str
    #: `digest` or `transfer`.
    kind: str
    message: str = ""


class Ended(Message, frozen=True):
    """D: the attempt holds nothing any more. Sent exactly once per Decode. No answer."""

    request_id: str
    attempt: Count
    #: A `FinishReason`, else empty.
    finish_reason: str = ""
    completion_tokens: Count = 0
    #: Milliseconds from the first token to the last.
    decode_ms: Number = 0.0
    #: A `Code`, else empty.
    error: str = ""
    message: str = ""


GatewayToRouter = (
    Hello
    | Beat
    | Leaving
    | Live
    | Submit
    | Abandoned
    | Cancel
    | AskAdapter
    | KeptOrders
    | RequestSummary
)
"""What a router decodes from a gateway."""

WorkerToRouter = (
    Hello
    | Beat
    | Leaving
    | Holding
    | Took
    | PrefillEnded
    | DecodeStarted
    | CopiedAhead
    | BudgetReached
    | PairTrouble
    | PrefixDelta
    | AdapterDone
    | Ended
)
"""What a router decodes from a worker."""

ToRouter = GatewayToRouter | WorkerToRouter
