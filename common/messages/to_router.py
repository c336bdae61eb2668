"""What the router hears."""

from __future__ import annotations

import msgspec

from common.messages.parts import (
    Capacity,
    Count,
    Held,
    KeyLimits,
    KvCounts,
    KvHold,
    KvReport,
    KvUnreachable,
    Leg,
    Load,
    Message,
    Number,
    Opinion,
    PriorityClass,
    Role,
)

HOLDING_MAX = 2_048
PREFIX_DELTA_HASHES_MAX = 8_192


class Hello(Message, frozen=True):
    """First message of every gateway and worker to the router, and of D to a gateway on a stream
    socket. Answered by `Welcome` or `Refused`. Nothing else from this peer is decoded before it.
    Workers say fingerprint (and its parts, to be read when two differ), kv_address (`host:port`,
    UCX) and capacity; gateways
    stream_endpoint."""

    wire_version: int
    role: Role
    name: str
    incarnation: str
    pid: int = 0
    fingerprint: str = ""
    fingerprint_parts: dict[str, str] = msgspec.field(default_factory=dict)
    model: str = ""
    kv_address: str = ""
    stream_endpoint: str = ""
    capacity: Capacity | None = None


class Beat(Message, frozen=True):
    """Gateway or worker, every 500 ms and whenever load changed much. No answer. Workers add their
    KV plane's counts and what it holds for others, at most the `KV_HOLDS_MAX` oldest of
    `kv_holds_total`; both are up to 500 ms old, None and empty until the KV plane spoke. `drained`:
    as the latest `Drain` said. `kv_unreachable`: 64 at most. `opinion`: of this host's health
    daemon, None when it is well or has not spoken of late."""

    load: Load | None = None
    kv_counts: KvCounts | None = None
    kv_holds: tuple[KvHold, ...] = ()
    kv_holds_total: Count = 0
    drained: bool = False
    kv_unreachable: tuple[KvUnreachable, ...] = ()
    opinion: Opinion | None = None


class Holding(Message, frozen=True):
    """Worker, in answer to every Welcome and before its next Beat: the tries that it holds, at most
    the `HOLDING_MAX` first given; `complete`: there are no others. What the router placed here
    before the Hello and does not find in a complete one is over; what it finds and does not know,
    another router placed, perhaps itself before a restart. No answer."""

    tries: tuple[Held, ...] = ()
    complete: bool = True


class Took(Message, frozen=True):
    """Worker, to every router but the one that placed it: this try holds room here now. Its reports
    go to all routers alike. No answer."""

    held: Held


class Live(Message, frozen=True):
    """Gateway, in answer to every Welcome: (request_id, attempt) of what it still wants, at most
    `HOLDING_MAX`; `complete`: there are no others. What the router had of this gateway before the
    Hello and does not find in a complete one is aborted. What is not known to be placed follows as
    Submit. No answer."""

    tries: tuple[tuple[str, Count], ...] = ()
    complete: bool = True


class Leaving(Message, frozen=True):
    """A peer that drains: place nothing new there. No answer; the connection closes later."""

    reason: str


class Submit(Message, frozen=True):
    """Gateway, + body: place this request. Answered by `Placed` or `Refused`, later maybe `Failed`.
    `deadline_ms`: remaining time in which the first token is still wanted; 0 = none. `key_id`: the
    API key's public id, empty = anonymous; `tenant`: who shares fairly with whom. `session`: the
    client's `x-session-id`. `local_reason`: why D must compute the prompt itself (prompt_logprobs),
    empty = it need not. `prefix_hashes`: 8 bytes for each leading whole block of the prompt
    (`common.prefix`), salted by tenant, for placement by prefix; may be cut short. `resumable`: its
    gateway can go on with it elsewhere after tokens were streamed, so that it may be preempted.
    `left`: identity of the D that the attempt before ran on and that stopped speaking, else
    empty; it is placed there again only if there is no other. `prompt_digest`: of the prompt as the
    client sent it, the same in every attempt, by which one that kills workers is known again."""

    request_id: str
    attempt: Count
    prompt_tokens: Count
    max_tokens: Count
    deadline_ms: Number = 0.0
    key_id: str = ""
    tenant: str = ""
    limits: KeyLimits | None = None
    priority: PriorityClass = PriorityClass.STANDARD
    session: str = ""
    local_reason: str = ""
    prefix_hashes: bytes = b""
    resumable: bool = False
    left: str = ""
    prompt_digest: bytes = b""


class Cancel(Message, frozen=True):
    """Gateway: this attempt is over for it (client gone, stop string met). Idempotent; no
    answer."""

    request_id: str
    attempt: Count
    reason: str


class Journey(Message, frozen=True):
    """Gateway, once for every request that left it, save those that the router refused at once (it
    knows all of those). `legs` follow each other without a gap and sum to the whole. `attempt`: the
    last one. `outcome`: `ended`, `failed` (then `code`) or `closed` by the client. `ttft_ms`,
    `itl_ms_max`: 0 = no token, or only one, came. `traceparent`: the client's, checked, or empty.
    No answer; lost when no router answers."""

    request_id: str
    attempt: int
    outcome: str
    legs: tuple[Leg, ...]
    code: str = ""
    prompt_tokens: int = 0
    completion_tokens: int = 0
    cached_tokens: int = 0
    ttft_ms: float = 0.0
    itl_ms_max: float = 0.0
    traceparent: str = ""


class PrefillEnded(Message, frozen=True):
    """P: its part is computed (`error` empty) or failed. `elapsed_ms` from Prefill's arrival."""

    request_id: str
    attempt: Count
    elapsed_ms: Number
    cached_tokens: Count = 0
    error: str = ""
    message: str = ""


class DecodeStarted(Message, frozen=True):
    """D: first token made. `elapsed_ms` from Decode's arrival; `kv` None when nothing was remote;
    `kv_ms` from Decode's arrival until the remote KV was in place."""

    request_id: str
    attempt: Count
    elapsed_ms: Number
    cached_tokens: Count = 0
    kv: KvReport | None = None
    kv_ms: float = 0.0


class PrefixDelta(Message, frozen=True):
    """Worker: what its engine's prefix cache gained and lost since it last said, as hashes of
    `common.prefix`, `PREFIX_DELTA_HASHES_MAX` at most in each. `cleared`: forget all that was said
    before. No answer; what is lost with a connection is told anew after `Welcome`."""

    stored: bytes = b""
    removed: bytes = b""
    cleared: bool = False


class PairTrouble(Message, frozen=True):
    """D: taking KV from this prefill worker failed for good, or its digests mismatched. The router
    stops pairing the two for a while. `kind`: `digest` or `transfer`. No answer."""

    request_id: str
    attempt: Count
    prefill: str
    prefill_incarnation: str
    kind: str
    message: str = ""


class Ended(Message, frozen=True):
    """D: the attempt holds nothing any more. Sent exactly once per Decode. `error` is a `Code` or
    empty. `decode_ms`: first token to last."""

    request_id: str
    attempt: Count
    finish_reason: str = ""
    completion_tokens: Count = 0
    decode_ms: Number = 0.0
    error: str = ""
    message: str = ""
