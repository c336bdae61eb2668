"""The vocabulary between `core.py` and its shell: the events that go in, and the actions that come
out.

A peer is named by its ZeroMQ identity `name|incarnation`, as text.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from common.messages import KeyLimits, Message, Role, ScaleOrder, StoreAction, ToRouter
from common.security.speaker import Speaker
from common.telemetry.timeline import TimelineRecord
from services.router.admission.limits import Limits


@dataclass(slots=True)
class Received:
    """A peer's message."""

    peer: str
    message: ToRouter
    #: The second frame of a Submit, still encoded.
    body: bytes | None = None
    #: Of a Hello over a socket with keys: the host that says it.
    speaker: Speaker | None = None


@dataclass(slots=True)
class PeerGone:
    """The connection to this peer is closed, or takes no more messages."""

    peer: str
    reason: str


@dataclass(slots=True)
class Tick:
    """Time passed. It comes at least every 200 ms."""


@dataclass(slots=True)
class DrainStarted:
    """The router stops: it admits nothing new, but what is queued may still be placed."""


@dataclass(slots=True)
class DrainExpired:
    """The router has no more time: what is still queued is refused."""


@dataclass(frozen=True, slots=True)
class PolicyChosen:
    """An operator sets how attempts are placed. The values were checked; an empty one leaves what
    is in force."""

    #: Name of a placement policy.
    policy: str
    #: The rule for remote prefill.
    remote_prefill: str


@dataclass(frozen=True, slots=True)
class LimitsChosen:
    """An operator sets limits. The values were checked."""

    limits: Limits
    #: The API key whose limits are set; empty = none.
    key_id: str = ""
    #: Its limits; None = those that gateways report.
    key_limits: KeyLimits | None = None


@dataclass(slots=True)
class WorkerDrained:
    """An operator lets a worker get nothing new, or lets it get work again."""

    #: Its identity.
    worker: str
    #: Whether it is drained from now on.
    on: bool


@dataclass(slots=True)
class RoleOrdered:
    """A worker is to take a role as soon as it holds nothing. Whoever gives the order has checked
    that it may (`fleet/roles.py`). Its present role takes an order back."""

    #: Its identity.
    worker: str
    role: Role


@dataclass(slots=True)
class WorkerEvicted:
    """An operator drops all that a worker holds: at once, save the streams that move."""

    #: Its identity.
    worker: str


@dataclass(slots=True)
class RequestMoved:
    """An operator moves a running stream to another decode worker. The verb has checked that it can
    leave, and that there is room for it."""

    request_id: str
    #: The number of the attempt.
    attempt: int
    #: Identity of the worker to which it is to go; empty = any that has room.
    target: str = ""


@dataclass(slots=True)
class RequestEvicted:
    """An operator ends one attempt of a request, at once."""

    request_id: str
    #: The number of the attempt.
    attempt: int


@dataclass(frozen=True, slots=True)
class AdapterOrdered:
    """An operator lets the workers of a model load a LoRA adapter, or let it go."""

    #: Name of the base model.
    model: str
    name: str
    #: Folder of its files; empty = let it go.
    path: str = ""


@dataclass(frozen=True, slots=True)
class StoreOrdered:
    """An operator wants something of blocks of stores. The verb has checked that there is room."""

    action: StoreAction
    #: By the identity of each worker and pool that has some of them, as in `OrderStore`.
    names: dict[str, bytes]


@dataclass(frozen=True, slots=True)
class PairsCleared:
    """An operator lets pairs of workers hand KV over again."""

    #: Names of P and D; empty = any.
    prefill: str = ""
    decode: str = ""


@dataclass(frozen=True, slots=True)
class HookEnded:
    """A hook for workers has ended, or was ended."""

    #: The order of this id, of this model.
    model: str
    order_id: str
    #: Whether it may have been heard: False = it was surely never called.
    called: bool
    #: What it said or did, for an operator.
    sentence: str


@dataclass(frozen=True, slots=True)
class PromptsCleared:
    """An operator ends the quarantine of a prompt."""

    #: Its digest; None = all prompts.
    digest: bytes | None = None


LocalEvent = (
    PeerGone
    | Tick
    | DrainStarted
    | DrainExpired
    | PolicyChosen
    | LimitsChosen
    | WorkerDrained
    | RoleOrdered
    | WorkerEvicted
    | RequestMoved
    | RequestEvicted
    | AdapterOrdered
    | StoreOrdered
    | PairsCleared
    | PromptsCleared
    | HookEnded
)
Event = Received | LocalEvent


@dataclass(slots=True)
class Send:
    """Send this to a peer. If the peer is gone, the shell answers with `PeerGone`."""

    peer: str
    message: Message
    #: A second frame, already encoded.
    body: bytes | None = None


@dataclass(slots=True)
class Note:
    """Write one line to the log."""

    level: Literal["debug", "info", "warning"]
    #: What happened, as `noun.verb`.
    event: str
    #: The same for an operator, in words.
    sentence: str
    fields: dict[str, object] = field(default_factory=dict)


@dataclass(slots=True)
class Recorded:
    """A request is over."""

    record: TimelineRecord


@dataclass(frozen=True, slots=True)
class CallHook:
    """Call a hook for workers, at most once, and never wait for it. `HookEnded` answers."""

    order: ScaleOrder
    #: Names of the workers of the model that are here.
    workers: tuple[str, ...]


Action = Send | Note | Recorded | CallHook
