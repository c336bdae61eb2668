"""What the router core hears and what it asks for; the vocabulary between `core.py` and its shell.

A peer is named by its ZeroMQ identity `name|incarnation`, as text.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

from common.messages import KeyLimits, Message, ToRouter
from services.router.admission.limits import Limits


@dataclass(slots=True)
class Received:
    """A peer's message. `body`: the second frame of a Submit, still encoded."""

    peer: str
    message: ToRouter
    body: bytes | None = None


@dataclass(slots=True)
class PeerGone:
    """The connection to this peer is closed, or takes no more."""

    peer: str
    reason: str


@dataclass(slots=True)
class Tick:
    """Time passed; at least each 200 ms."""


@dataclass(slots=True)
class DrainStarted:
    """Admit nothing new from now on; what is queued may still be placed."""


@dataclass(slots=True)
class DrainExpired:
    """Refuse what is still queued."""


@dataclass(frozen=True, slots=True)
class PolicyChosen:
    """An operator sets the placement policy, or the rule for remote prefill, or both; empty: as it
    is. Both are checked."""

    policy: str
    remote_prefill: str


@dataclass(frozen=True, slots=True)
class LimitsChosen:
    """An operator sets limits, all of them checked. `key_id`: whose `key_limits` are set, None =
    back to what gateways say."""

    limits: Limits
    key_id: str = ""
    key_limits: KeyLimits | None = None


@dataclass(slots=True)
class WorkerDrained:
    """An operator: place nothing new on this worker (identity), or again."""

    worker: str
    on: bool


@dataclass(slots=True)
class WorkerEvicted:
    """An operator: drop what this worker (identity) holds, now."""

    worker: str


@dataclass(slots=True)
class RequestEvicted:
    """An operator: end this try, now."""

    request_id: str
    attempt: int


@dataclass(frozen=True, slots=True)
class PairsCleared:
    """An operator lets these pairs hand KV over again: names of P and D, empty = any."""

    prefill: str = ""
    decode: str = ""


@dataclass(frozen=True, slots=True)
class PromptsCleared:
    """An operator lets this prompt be tried again: its digest, None = all."""

    digest: bytes | None = None


Event = (
    Received
    | PeerGone
    | Tick
    | DrainStarted
    | DrainExpired
    | PolicyChosen
    | LimitsChosen
    | WorkerDrained
    | WorkerEvicted
    | RequestEvicted
    | PairsCleared
    | PromptsCleared
)


@dataclass(slots=True)
class Send:
    """To this peer. Should it be gone, the shell says `PeerGone`."""

    peer: str
    message: Message
    body: bytes | None = None


@dataclass(slots=True)
class Note:
    """One line for the log: `event` is `noun.verb`, `sentence` for an operator."""

    level: Literal["debug", "info", "warning"]
    event: str
    sentence: str
    fields: dict[str, object] = field(default_factory=dict)


@dataclass(slots=True)
class Recorded:
    """A request is over, and this is its timeline (`timeline/record.py`)."""

    record: dict[str, Any]


Action = Send | Note | Recorded
