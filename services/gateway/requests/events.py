"""The events of a gateway's core and its actions."""

from __future__ import annotations

from dataclasses import dataclass

from common.messages import (
    Abandoned,
    Abort,
    Cancel,
    Delta,
    KeptOrders,
    OtherCell,
    RequestBody,
    RequestSummary,
    RouterToGateway,
    Submit,
)
from services.gateway.api.kinds import RequestSpec
from services.gateway.auth.caller import ANONYMOUS, Caller
from services.gateway.streams.answer import FailureListener, TokenStream


@dataclass(frozen=True, slots=True)
class Opened:
    """A client's request passed all checks and is to run."""

    spec: RequestSpec
    stream: TokenStream
    answer: FailureListener
    caller: Caller = ANONYMOUS
    #: Whether its own cell is lost, and this is the other one.
    spilled: bool = False
    #: What its key does in the other one of its two cells; None: nothing that counts here.
    other_cell: OtherCell | None = None


@dataclass(frozen=True, slots=True)
class Closed:
    """The client is gone, or too slow. Harmless when the request has already ended."""

    request_id: str
    reason: str


@dataclass(frozen=True, slots=True)
class Attended:
    """The client of a resumable stream left, or came back. Harmless after its end."""

    request_id: str
    attended: bool


@dataclass(frozen=True, slots=True)
class RouterUp:
    """A router has welcomed this gateway and takes its messages."""


@dataclass(frozen=True, slots=True)
class RouterDown:
    """No router takes messages now."""


@dataclass(frozen=True, slots=True)
class FromRouter:
    message: RouterToGateway


@dataclass(frozen=True, slots=True)
class WorkerUp:
    """A decode worker opened a stream connection; an earlier one of it carries nothing more."""

    #: Identity, `name|incarnation`.
    worker: bytes


@dataclass(frozen=True, slots=True)
class WorkerGone:
    """A decode worker's stream connection is gone."""

    worker: bytes
    reason: str


@dataclass(frozen=True, slots=True)
class Stepped:
    """The tokens of one engine step of `worker`."""

    worker: bytes
    deltas: list[Delta]


@dataclass(frozen=True, slots=True)
class Tick:
    """Time passes; comes several times a second. `late`: this gateway itself stood still before,
    as the cells' core tells the cores."""

    late: bool = False


@dataclass(frozen=True, slots=True)
class DrainStarted:
    """Refuse new requests from now on."""


@dataclass(frozen=True, slots=True)
class DrainExpired:
    """End all requests that still run, with an error."""


Event = (
    Opened
    | Closed
    | Attended
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
    """Send `message`, with `body` in a frame of its own where there is one."""

    message: Submit | Abandoned | Cancel | KeptOrders
    body: RequestBody | None = None
    #: Whose router; empty where there are no cells.
    cell: str = ""


@dataclass(frozen=True, slots=True)
class ToWorker:
    worker: bytes
    message: Abort


@dataclass(frozen=True, slots=True)
class Note:
    """A line for the log."""

    #: `noun.verb`.
    event: str
    sentence: str
    request_id: str = ""


@dataclass(frozen=True, slots=True)
class Report:
    """A request is over: send its summary to the router, if one is there."""

    summary: RequestSummary
    #: Whose router; empty where there are no cells.
    cell: str = ""


Action = ToRouter | ToWorker | Note | Report
