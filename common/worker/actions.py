"""The interface of worker cores: the events that they handle and the actions that they return.

The shell (`common.worker.daemon`) turns what sockets and the engine bring into these events, and
carries out the actions in order. `Abort`, `Become`, `Move`, `CopyAhead`, `GrantKv`, `HandOver`
and `Batch` are events as they arrive.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from common.engine.port import Batch, EngineRequest
from common.messages import (
    Abort,
    Become,
    CopyAhead,
    Decode,
    Delta,
    GrantKv,
    HandOver,
    HeldAttempt,
    Message,
    Move,
    Prefill,
    RequestBody,
    Ticket,
)


@dataclass(frozen=True, slots=True)
class Dispatched:
    """A router placed an attempt here."""

    message: Prefill | Decode
    #: The decoded second frame of the message.
    body: RequestBody


@dataclass(frozen=True, slots=True)
class EngineRefused:
    """`Engine.add` raised for this attempt, so no output will follow."""

    request_id: str
    attempt: int
    code: str
    message: str


@dataclass(frozen=True, slots=True)
class GatewayGone:
    """The stream connection to this gateway is closed, or its queue is full."""

    gateway: str
    incarnation: str
    reason: str


@dataclass(frozen=True, slots=True)
class FrameDropped:
    """A router sent a frame that cannot be decoded; the core only counts it."""

    reason: str


@dataclass(frozen=True, slots=True)
class DrainOver:
    """This worker must stop soon. The requests that it still has continue elsewhere. `at_once`:
    the engine is not waited for."""

    reason: str
    at_once: bool = False


Event = (
    Dispatched
    | Abort
    | Become
    | Move
    | CopyAhead
    | GrantKv
    | HandOver
    | Batch
    | EngineRefused
    | GatewayGone
    | FrameDropped
    | DrainOver
)


@dataclass(frozen=True, slots=True)
class AddToEngine:
    """Gives the engine a request."""

    request: EngineRequest


@dataclass(frozen=True, slots=True)
class AbortInEngine:
    """Makes the engine free all that it holds for this attempt."""

    request_id: str
    attempt: int


@dataclass(frozen=True, slots=True)
class LeaveEngine:
    """Makes the engine end a stream with the step that runs, and keep its KV."""

    request_id: str
    attempt: int


@dataclass(frozen=True, slots=True)
class HandOverKept:
    """Makes the engine give what it keeps of this attempt to the D of the ticket."""

    ticket: Ticket
    kept_attempt: int


@dataclass(frozen=True, slots=True)
class CopyInEngine:
    """Makes the engine copy a stream ahead of its move."""

    order: CopyAhead


@dataclass(frozen=True, slots=True)
class ToRouter:
    """A report to all routers."""

    message: Message


@dataclass(frozen=True, slots=True)
class ToGateway:
    """All deltas of one engine step for one gateway."""

    gateway: str
    incarnation: str
    #: Where the gateway's stream socket is bound.
    endpoint: str
    deltas: list[Delta]


Action = (
    AddToEngine | AbortInEngine | LeaveEngine | HandOverKept | CopyInEngine | ToRouter | ToGateway
)


class WorkerCore(Protocol):
    """A worker's decisions: `PrefillCore` or `DecodeCore`, both at once (`BothCores`), or one after
    the other (`RoleCores`)."""

    @property
    def dropped(self) -> int:
        """Events and frames that were dropped."""
        ...

    @property
    def active(self) -> int:
        """Attempts that a drain must wait for."""
        ...

    def held_attempts(self) -> list[HeldAttempt]:
        """All attempts, the oldest first."""
        ...

    def held_attempt(self, request_id: str, attempt: int) -> HeldAttempt | None:
        """None if the attempt is not held."""
        ...

    def holds(self, key: str) -> bool:
        """Whether it holds the attempt that the engine knows by this key."""
        ...

    def handle(self, event: Event, now: float) -> list[Action]:
        """The sole mutator. `now` is in seconds, monotonic."""
        ...
