"""What the router sends to gateways and workers."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from common.messages.kv_reports import KvHolder, KvSource, Ticket
from common.messages.parts import ADAPTERS_MAX, Count, Message, Role, ScaleOrder

#: What an operator wants of blocks of a store.
StoreAction = Literal["pin", "unpin", "drop"]
STORE_ORDER_BYTES_MAX = 1 << 16


class ServedAdapter(msgspec.Struct, frozen=True, array_like=True):
    """A LoRA adapter with which a model can be asked for."""

    #: As in `AdapterStatus`. No two have the same name.
    id: str
    path: str = ""


class Welcome(Message, frozen=True):
    """Router, or a gateway on a stream socket: the Hello was accepted."""

    wire_version: int
    #: Name of the answering process.
    name: str
    incarnation: str


class Refused(Message, frozen=True):
    """Router: a Hello or a Submit was not accepted; nothing was placed."""

    #: A `Code`.
    code: str
    message: str
    #: Empty for a Hello.
    request_id: str = ""
    attempt: int = 0
    #: Milliseconds after which another attempt may succeed; 0 if it will not.
    retry_after_ms: int = 0


class Ping(Message, frozen=True):
    """Router, or a gateway on a stream socket: tests the connection. It is never answered; sending
    it to a peer that is gone fails at once."""


class Fleet(Message, frozen=True):
    """Router to gateways, for each model after Welcome and on each change: what can be served of
    the model now."""

    #: Whether requests can be placed.
    ready: bool
    #: Prefill workers that are ready.
    prefill_ready: int
    #: Decode workers that are ready.
    decode_ready: int
    #: Tokens of a prompt and its output together.
    max_model_len: int
    #: Name of the model.
    model: str = ""
    #: Why the fleet is not ready, else empty.
    reason: str = ""
    #: Tokens of the blocks that `Submit.prefix_hashes` name; 0 if the router has no use for them.
    block_tokens: int = 0
    #: Whether all ready decode workers restore sampling state (`Capacity.restores`).
    restores: bool = False
    #: The model's LoRA adapters that a decode worker has.
    adapters: Annotated[tuple[ServedAdapter, ...], Meta(max_length=ADAPTERS_MAX)] = ()


class Placed(Message, frozen=True):
    """Router to gateway: tokens of this attempt will come from this decode worker."""

    request_id: str
    attempt: int
    decode: str
    decode_incarnation: str
    #: Name of the prefill worker; empty if D computes the prompt.
    prefill: str = ""


class Prefilled(Message, frozen=True):
    """Router to gateway: P has computed the prompt, and had a part of it in its prefix cache. Sent
    only where it had. No answer."""

    request_id: str
    attempt: int
    #: Prompt tokens whose KV was in P's prefix cache.
    cached_tokens: int


class Failed(Message, frozen=True):
    """Router to gateway: a placed attempt failed because its worker is lost.

    It is repeated after a new Hello, and in answer to a Submit of that attempt, because the first
    one may have been lost with a connection. With code `no_capacity` D refused the attempt and
    began nothing; the gateway submits the request again."""

    request_id: str
    attempt: int
    #: A `Code`.
    code: str
    message: str


class AdapterTold(Message, frozen=True):
    """Router to gateway: what became of an `AskAdapter`."""

    ask_id: Count
    #: A `Code`; empty if all workers did it.
    code: str = ""
    message: str = ""


class KeepOrder(Message, frozen=True):
    """Router to the gateways that use it: remember this order for workers of a model, in place of
    an earlier one, or forget it. Answered by `KeptOrders`. Idempotent."""

    #: Name of the model.
    model: str
    #: None: no order is open.
    order: ScaleOrder | None = None


class Introduce(Message, frozen=True):
    """Router to D: a prefill worker of the same fingerprint is ready; connect to it ahead of need.
    It is sent again whenever either of the two becomes ready. Also of a decode worker whose streams
    are about to move."""

    #: UCX listener of the other worker, `host:port`.
    kv_address: str
    #: Name of the prefill worker, whose earlier address this one replaces; empty for a decode
    #: worker, to which connections are not made again.
    prefill: str = ""


class Layout(Message, frozen=True):
    """Router to a pool whose Hello had no fingerprint: hold KV of these workers. It is sent when
    the first worker of the pool's model that has a store is ready. The pool answers with a Hello
    that has this fingerprint. One that has another already ignores it."""

    #: Name of the worker whose layout this is.
    worker: str
    fingerprint: str
    fingerprint_parts: dict[str, str]
    #: Tokens of one KV block.
    block_tokens: int
    #: Bytes of one KV block over all layers.
    block_bytes: int
    #: Layers into which a block is cut on the wire.
    layers: int


class Prefill(Message, frozen=True):
    """Router to P, + body: compute the KV of the prompt and hand it to the ticket's D. Answered by
    `PrefillEnded`."""

    request_id: str
    attempt: int
    ticket: Ticket
    #: Out of whose store P may get the beginning of the prompt.
    source: KvSource | None = None
    #: The pool that gets copies of the prompt's blocks; None: none does.
    holder: KvHolder | None = None


class Decode(Message, frozen=True):
    """Router to D, + body: take the KV, sample, and stream `Tokens` to the gateway. Answered by
    `DecodeStarted` and exactly one `Ended`."""

    request_id: str
    attempt: int
    #: Name of the gateway.
    gateway: str
    gateway_incarnation: str
    #: Where the gateway's stream socket is bound.
    stream_endpoint: str
    #: By which the KV is taken; None if D computes the prompt itself.
    ticket: Ticket | None = None
    #: As in `Prefill`, where D computes the prompt.
    source: KvSource | None = None
    #: To whose store D offers the stream's blocks as they fill; None: to none.
    holder: KvHolder | None = None
    #: As in `GrantKv`.
    kv_tokens: Count = 0
    kv_tokens_near: Count = 0


class Prefetch(Message, frozen=True):
    """Router to worker: this request waits in the queue, and its prompt will probably be computed
    there. The worker may bring the beginning of the prompt to the memory of its store meanwhile. No
    answer. `Abort` takes it back, and so does the time."""

    request_id: str
    attempt: int
    #: As the second frame of `Prefill`.
    body: bytes
    #: Out of whose store it may be pulled.
    source: KvSource | None = None


class Move(Message, frozen=True):
    """Router to D: end this stream with the step that runs, with the error `moved`, so that its
    gateway continues it elsewhere, and keep its KV for a while. Answered by `Ended`, of another
    reason if it ends before. Idempotent."""

    request_id: str
    attempt: int
    reason: str


class GrantKv(Message, frozen=True):
    """Router to D, perhaps in answer to BudgetReached: the stream may go on growing here. Repeated
    by the router whenever D seems not to know it. Idempotent; no answer."""

    request_id: str
    attempt: int
    #: Tokens of prompt and answer whose KV it is promised; 0: all that it may have.
    kv_tokens: Count = 0
    #: How many of them it has when D tells for the first time, its next step counted ahead.
    kv_tokens_near: Count = 0


class CopyAhead(Message, frozen=True):
    """Router to D: from now on offer the blocks of this stream to the store of this holder, in
    place of the one that `Decode` named, because the stream is to move there. Answered by
    `CopiedAhead`, if there is a holder. Idempotent."""

    request_id: str
    attempt: int
    #: None: to nobody any more.
    holder: KvHolder | None = None
    #: How many of the stream's full blocks the holder may lack when D answers.
    lag_blocks: Count = 0


class HandOver(Message, frozen=True):
    """Router to D: what is kept of a moved or drained stream is for the D of this ticket, which has
    got the next attempt. No answer; where nothing is kept, that D is told so and computes."""

    ticket: Ticket
    #: The attempt of the same request that ended here.
    kept_attempt: int


class Drain(Message, frozen=True):
    """Router to worker, on an operator's order: place nothing new there, or place again.

    The worker only remembers it and repeats it in every Beat, so that all routers know it, also
    after a restart. It is repeated until a Beat agrees. Idempotent."""

    #: Whether the worker is drained.
    on: bool


class Wake(Message, frozen=True):
    """Router to a D that is warm: be ready for requests, or sleep again. It sleeps only while it
    holds nothing. It is repeated until a Beat agrees. Idempotent."""

    #: Whether the worker is to be awake.
    on: bool = True


class OrderStore(Message, frozen=True):
    """Router to a worker or a pool, on an operator's order: keep these blocks of its store, keep
    them no longer, or drop them. No answer; `KvCounts.store_pinned` tells. Idempotent."""

    action: StoreAction
    #: By which routers know the blocks (`common.prefix`), in the order of their prompts.
    names: Annotated[bytes, Meta(max_length=STORE_ORDER_BYTES_MAX)]


class Become(Message, frozen=True):
    """Router to P or D, on an operator's order: take this role as soon as you hold nothing.

    The worker repeats it in every Beat, so that all routers know it, also after a restart, and says
    Hello once it has the role. Its present role takes an order back. An order of another epoch than
    the next is too late and is ignored. It is repeated until a Beat agrees. Idempotent."""

    #: Prefill, decode or mixed.
    role: Role
    #: The worker's `role_epoch` once it has the role.
    epoch: Count


class OrderAdapter(Message, frozen=True):
    """Router to worker: load this LoRA adapter, or let it go. Answered by `AdapterDone`.
    Idempotent."""

    name: str
    #: Folder of its files; empty: let it go. Requests that run with it go on.
    path: str = ""


class Abort(Message, frozen=True):
    """Router to P or D, or gateway to D on the stream socket: stop this attempt and free
    everything.

    Idempotent. D answers the router with `Ended(error=cancelled)` if it still held the attempt."""

    request_id: str
    attempt: int
    reason: str


RouterToGateway = (
    Welcome | Refused | Ping | Fleet | Placed | Prefilled | Failed | AdapterTold | KeepOrder
)
"""What a gateway decodes from a router."""

RouterToWorker = (
    Welcome
    | Refused
    | Ping
    | Introduce
    | Drain
    | Prefill
    | Decode
    | Abort
    | Move
    | GrantKv
    | CopyAhead
    | HandOver
    | Wake
    | OrderAdapter
    | OrderStore
    | Prefetch
    | Become
)
"""What a worker decodes from a router."""

RouterToPool = Welcome | Refused | Ping | Drain | Introduce | Layout | OrderStore
"""What a pool decodes from a router."""

GatewayToDecode = Welcome | Refused | Ping | Abort
"""What a decode worker decodes from a gateway, on the stream socket."""
