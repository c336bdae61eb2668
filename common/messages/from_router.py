"""What the router says, to gateways and workers."""

from __future__ import annotations

from common.messages.parts import Message, Ticket


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
    """Router to gateways, on change and after Welcome: what can be served now. `block_tokens`: what
    `Submit.prefix_hashes` are to be made of; 0 = they are of no use. `restores`: so do all ready
    decode workers (`Capacity.restores`)."""

    ready: bool
    prefill_ready: int
    decode_ready: int
    max_model_len: int
    model: str = ""
    reason: str = ""
    block_tokens: int = 0
    restores: bool = False


class Placed(Message, frozen=True):
    """Router to gateway: tokens of this attempt will come from this decode worker."""

    request_id: str
    attempt: int
    decode: str
    decode_incarnation: str
    prefill: str = ""


class Failed(Message, frozen=True):
    """Router to gateway: a placed attempt died (worker lost). Said again after a new Hello, and to
    a Submit of that attempt, since the first may have been lost with a connection. With code
    `no_capacity` D refused it, nothing was begun: the gateway submits it anew."""

    request_id: str
    attempt: int
    code: str
    message: str


class Introduce(Message, frozen=True):
    """Router to D: a prefill worker of your fingerprint is ready; connect to its `kv_address`
    (`host:port`, UCX) ahead of need. Sent again whenever either of the two becomes ready.
    `prefill`: its name; an address that it had before is of no more use."""

    kv_address: str
    prefill: str = ""


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


class Drain(Message, frozen=True):
    """Router to worker, when an operator says so: nothing new is to be placed there (`on`), or
    again. The worker only remembers it and says it in every Beat, so that all routers know,
    restarted ones too. Said again until a Beat agrees. Idempotent."""

    on: bool


class Abort(Message, frozen=True):
    """Router to P or D, or gateway to D on the stream socket: stop this attempt, free everything.
    Idempotent. D answers the router with `Ended(error=cancelled)` if it still held it."""

    request_id: str
    attempt: int
    reason: str
