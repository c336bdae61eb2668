"""Every message that crosses a process, grouped by who receives it.

Encoding: MessagePack maps of frozen, tagged msgspec structs (`common.wire`). On ZeroMQ a message is
one frame, or two where the docstring says `+ body`: the body frame is an encoded `RequestBody` that
the router forwards without decoding. Durations are milliseconds as float, sizes bytes, both as the
field's name says; instants never travel. `request_id` + `attempt` name one try of one request; a
receiver drops and counts what is not its current attempt or incarnation.

The KV plane's own messages (P and D over UCX, a worker and its KV thread) are in
`common/kv/messages.py`, under the same version.

`WIRE_VERSION`: bump when a field's meaning or type changes or a message is removed. Adding a field
with a default, or a message, does not need a bump. A type never changes in place.
History: 1 = first version.
"""

from __future__ import annotations

import enum

import msgspec

WIRE_VERSION = 1


class Role(enum.StrEnum):
    GATEWAY = "gateway"
    ROUTER = "router"
    PREFILL = "prefill"
    DECODE = "decode"
    HEALTH = "health"


class FinishReason(enum.StrEnum):
    """Why D ended a stream by itself. Stop strings are the gateway's: it aborts D and says
    `stop`."""

    STOP = "stop"
    LENGTH = "length"


class Message(msgspec.Struct, frozen=True, tag=True, kw_only=True, forbid_unknown_fields=False):
    """Base of all tagged messages; the tag is the class name, the key of it `type`."""


# ---------------------------------------------------------------- parts


class Sampling(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """How D samples, in vLLM's terms. Stop strings are not here: the gateway scans text."""

    max_tokens: int
    min_tokens: int = 0
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    seed: int | None = None
    ignore_eos: bool = False
    stop_token_ids: tuple[int, ...] = ()
    logit_bias: dict[int, float] | None = None


class RequestBody(msgspec.Struct, frozen=True, kw_only=True):
    """The part of a request only engines read. `prompt_ids`: uint32 little endian, one per
    token."""

    prompt_ids: bytes
    sampling: Sampling
    cache_salt: str | None = None


class Capacity(msgspec.Struct, frozen=True, kw_only=True):
    """What a worker's engine can hold; fixed for an incarnation."""

    block_tokens: int
    kv_blocks: int
    kv_block_bytes: int
    max_model_len: int
    max_num_seqs: int


class Load(msgspec.Struct, frozen=True, kw_only=True):
    """What a worker's engine holds now. `step_age_ms`: time since the engine last made a step while
    it had work, 0 when idle."""

    running: int = 0
    waiting: int = 0
    kv_used: float = 0.0
    step_age_ms: float = 0.0


class Ticket(msgspec.Struct, frozen=True, kw_only=True):
    """The right to take one request's KV from P once. Made by the router, sent to P and D together.

    `secret`: 16 random bytes, single use. `kv_address`: `host:port` of P's UCX listener.
    `lease_ms`: how long P may hold blocks for it, counted on P from arrival. P and D each refuse a
    ticket whose fingerprint or incarnation is not their own.
    """

    secret: bytes
    request_id: str
    attempt: int
    fingerprint: str
    prefill: str
    prefill_incarnation: str
    decode: str
    decode_incarnation: str
    kv_address: str
    lease_ms: float


class KvReport(msgspec.Struct, frozen=True, kw_only=True):
    """What one handoff moved, measured on D. `payload_bytes` counts KV only, `wire_bytes` headers
    too. `wait_ms`: KvReady sent to first data; `transfer_ms`: first to last data verified."""

    blocks: int = 0
    messages: int = 0
    payload_bytes: int = 0
    wire_bytes: int = 0
    wait_ms: float = 0.0
    transfer_ms: float = 0.0
    retries: int = 0


# ---------------------------------------------------------------- to the router


class Hello(Message, frozen=True):
    """First message of every gateway and worker to the router, and of D to a gateway on a stream
    socket. Answered by `Welcome` or `Refused`. Nothing else from this peer is decoded before it.
    Workers say fingerprint, kv_address (`host:port`, UCX) and capacity; gateways
    stream_endpoint."""

    wire_version: int
    role: Role
    name: str
    incarnation: str
    pid: int = 0
    fingerprint: str = ""
    model: str = ""
    kv_address: str = ""
    stream_endpoint: str = ""
    capacity: Capacity | None = None


class Beat(Message, frozen=True):
    """Gateway or worker, every 500 ms and whenever load changed much. No answer."""

    load: Load | None = None


class Leaving(Message, frozen=True):
    """A peer that drains: place nothing new there. No answer; the connection closes later."""

    reason: str


class Submit(Message, frozen=True):
    """Gateway, + body: place this request. Answered by `Placed` or `Refused`, later maybe `Failed`.
    `deadline_ms`: remaining time in which the first token is still wanted; 0 = none."""

    request_id: str
    attempt: int
    prompt_tokens: int
    max_tokens: int
    deadline_ms: float = 0.0


class Cancel(Message, frozen=True):
    """Gateway: this attempt is over for it (client gone, stop string met). Idempotent; no
    answer."""

    request_id: str
    attempt: int
    reason: str


class PrefillEnded(Message, frozen=True):
    """P: its part is computed (`error` empty) or failed. `elapsed_ms` from Prefill's arrival."""

    request_id: str
    attempt: int
    elapsed_ms: float
    cached_tokens: int = 0
    error: str = ""
    message: str = ""


class DecodeStarted(Message, frozen=True):
    """D: first token made. `elapsed_ms` from Decode's arrival; `kv` None when nothing was
    remote."""

    request_id: str
    attempt: int
    elapsed_ms: float
    cached_tokens: int = 0
    kv: KvReport | None = None


class Ended(Message, frozen=True):
    """D: the attempt holds nothing any more. Sent exactly once per Decode. `error` is a `Code` or
    empty. `decode_ms`: first token to last."""

    request_id: str
    attempt: int
    finish_reason: str = ""
    completion_tokens: int = 0
    decode_ms: float = 0.0
    error: str = ""
    message: str = ""


# ---------------------------------------------------------------- from the router


class Welcome(Message, frozen=True):
    """Router (or a gateway, on a stream socket): the Hello was good. Names the answering
    process."""

    wire_version: int
    name: str
    incarnation: str


class Refused(Message, frozen=True):
    """Router: a Hello (`request_id` empty) or a Submit was not accepted; nothing was placed."""

    code: str
    message: str
    request_id: str = ""
    attempt: int = 0
    retry_after_ms: int = 0


class Ping(Message, frozen=True):
    """Router, or gateway on a stream socket: is the connection alive? Never answered; its use is
    that sending it to a vanished peer fails at once."""


class Fleet(Message, frozen=True):
    """Router to gateways, on change and after Welcome: what can be served now."""

    ready: bool
    prefill_ready: int
    decode_ready: int
    max_model_len: int
    model: str = ""
    reason: str = ""


class Placed(Message, frozen=True):
    """Router to gateway: tokens of this attempt will come from this decode worker."""

    request_id: str
    attempt: int
    decode: str
    decode_incarnation: str
    prefill: str = ""


class Failed(Message, frozen=True):
    """Router to gateway: a placed attempt died (worker lost). Said again after a new Hello, and to
    a Submit of that attempt, since the first may have been lost with a connection."""

    request_id: str
    attempt: int
    code: str
    message: str


class Introduce(Message, frozen=True):
    """Router to D: a prefill worker of your fingerprint is ready; connect to its `kv_address`
    (`host:port`, UCX) ahead of need. Sent again whenever either of the two becomes ready."""

    kv_address: str


class Prefill(Message, frozen=True):
    """Router to P, + body: compute KV of the prompt and hand it to the ticket's D."""

    request_id: str
    attempt: int
    ticket: Ticket


class Decode(Message, frozen=True):
    """Router to D, + body: take KV by the ticket (None: compute it here), sample, stream `Tokens`
    to the gateway's stream endpoint."""

    request_id: str
    attempt: int
    gateway: str
    gateway_incarnation: str
    stream_endpoint: str
    ticket: Ticket | None = None


class Abort(Message, frozen=True):
    """Router to P or D, or gateway to D on the stream socket: stop this attempt, free everything.
    Idempotent. D answers the router with `Ended(error=cancelled)` if it still held it."""

    request_id: str
    attempt: int
    reason: str


# ---------------------------------------------------------------- to a gateway, from D


class Delta(msgspec.Struct, frozen=True, array_like=True, omit_defaults=True):
    """New tokens of one stream in one engine step. `index`: position of the first new token in the
    completion, from 0; the gateway accepts only the next index of the current attempt. The last
    delta has `finish_reason` or `error` set."""

    request_id: str
    attempt: int
    index: int
    token_ids: list[int]
    finish_reason: str = ""
    stop_token: int = -1
    cached_tokens: int = 0
    error: str = ""
    message: str = ""


class Tokens(Message, frozen=True):
    """D: all deltas of one engine step for this gateway's streams."""

    deltas: list[Delta]


GatewayToRouter = Hello | Beat | Leaving | Submit | Cancel
WorkerToRouter = Hello | Beat | Leaving | PrefillEnded | DecodeStarted | Ended
ToRouter = Hello | Beat | Leaving | Submit | Cancel | PrefillEnded | DecodeStarted | Ended
RouterToGateway = Welcome | Refused | Ping | Fleet | Placed | Failed
RouterToWorker = Welcome | Refused | Ping | Introduce | Prefill | Decode | Abort
DecodeToGateway = Hello | Tokens
GatewayToDecode = Welcome | Refused | Ping | Abort
