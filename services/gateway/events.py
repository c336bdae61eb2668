"""What happens to a gateway's core, and what the core wants done."""

from __future__ import annotations

from dataclasses import dataclass

from common.messages import (
    Abort,
    Cancel,
    Delta,
    Journey,
    RequestBody,
    RouterToGateway,
    Submit,
)
from services.gateway.api.kinds import Call
from services.gateway.auth.caller import ANONYMOUS, Caller
from services.gateway.streams.answer import Hears, TokenStream


@dataclass(frozen=True, slots=True)
class Opened:
    """A client's request is checked and wants to run."""

    call: Call
    stream: TokenStream
    answer: Hears
    caller: Caller = ANONYMOUS


@dataclass(frozen=True, slots=True)
class Closed:
    """The client is gone, or too slow. Harmless when the request has already ended."""

    request_id: str
    reason: str


@dataclass(frozen=True, slots=True)
class RouterUp:
    """The router has welcomed this gateway."""


@dataclass(frozen=True, slots=True)
class RouterDown:
    """Nothing reaches the router now."""


@dataclass(frozen=True, slots=True)
class FromRouter:
    message: RouterToGateway


@dataclass(frozen=True, slots=True)
class WorkerUp:
    """A decode worker opened a stream connection; what an earlier one of it carried is over."""

    worker: bytes


@dataclass(frozen=True, slots=True)
class WorkerGone:
    worker: bytes
    reason: str


@dataclass(frozen=True, slots=True)
class Stepped:
    """One engine step's tokens from `worker`."""

    worker: bytes
    deltas: list[Delta]


@dataclass(frozen=True, slots=True)
class Tick:
    """Time passes; several a second."""


@dataclass(frozen=True, slots=True)
class DrainStarted:
    """Take nothing new."""


@dataclass(frozen=True, slots=True)
class DrainExpired:
    """End what still runs, explicitly."""


Event = (
    Opened
    | Closed
    | RouterUp
    | RouterDown
    | FromRouter
    | WorkerUp
    | WorkerGone
    | Stepped
    | Tick
    | DrainStarted
    | DrainExpired
)


@dataclass(frozen=True, slots=True)
class ToRouter:
    message: Submit | Cancel
    body: RequestBody | None = None


@dataclass(frozen=True, slots=True)
class ToWorker:
    worker: bytes
    message: Abort


@dataclass(frozen=True, slots=True)
class Note:
    """A line for the log: `event` is `noun.verb`."""

    event: str
    sentence: str
    request_id: str = ""


@dataclass(frozen=True, slots=True)
class Report:
    """A request is over: the router is told its whole way, should it be there."""

    journey: Journey


Action = ToRouter | ToWorker | Note | Report
