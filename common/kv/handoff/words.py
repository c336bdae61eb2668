"""The words of a handoff: states, their transition tables, events and actions of both ends.

Theory of operation: `handle(event, now)` is the sole mutator and returns actions in the order in
which the shell must do them; every action that takes time comes back as an event. A *transfer* is
one try: an id that D never used before. A *slot* is a receive that D has posted for it, for any
one message of the transfer; D grants a slot only then, and P answers every granted slot once, with
a message not sent yet or with a void, also after the handoff has ended, so that no posted receive
is left behind. What D gives to the engine was verified; a message of an older transfer, or one that
was verified before, is never written to blocks. A retry asks only for what is not yet verified.

    P: OFFERED -> SENDING -> RELEASED          D: CONNECTING -> WAITING -> RECEIVING -> DONE
       any -> CANCELLED | ABORTED | EXPIRED       any -> BACKOFF -> CONNECTING
                                                  any -> FAILED | ABORTED
"""

from __future__ import annotations

import enum
from dataclasses import dataclass

from common.kv.digest import Arrival
from common.kv.messages import KvAbort, KvCredit, KvReady, KvRefused, KvReleased
from common.kv.plan import Plan


class SendState(enum.Enum):
    OFFERED = "offered"
    SENDING = "sending"
    RELEASED = "released"
    CANCELLED = "cancelled"
    ABORTED = "aborted"
    EXPIRED = "expired"


class ReceiveState(enum.Enum):
    CONNECTING = "connecting"
    WAITING = "waiting"
    RECEIVING = "receiving"
    BACKOFF = "backoff"
    DONE = "done"
    FAILED = "failed"
    ABORTED = "aborted"


_SEND_ENDS = frozenset(
    {SendState.RELEASED, SendState.CANCELLED, SendState.ABORTED, SendState.EXPIRED}
)
SEND_TRANSITIONS: dict[SendState, frozenset[SendState]] = {
    SendState.OFFERED: _SEND_ENDS | {SendState.SENDING},
    SendState.SENDING: _SEND_ENDS | {SendState.SENDING, SendState.OFFERED},
    **dict.fromkeys(_SEND_ENDS, frozenset[SendState]()),
}
SEND_TERMINAL = _SEND_ENDS

_R = ReceiveState
_RECEIVE_ENDS = frozenset({_R.DONE, _R.FAILED, _R.ABORTED})
RECEIVE_TRANSITIONS: dict[ReceiveState, frozenset[ReceiveState]] = {
    _R.CONNECTING: frozenset({_R.WAITING, _R.BACKOFF}) | _RECEIVE_ENDS,
    _R.WAITING: frozenset({_R.RECEIVING, _R.CONNECTING, _R.BACKOFF}) | _RECEIVE_ENDS,
    _R.RECEIVING: frozenset({_R.CONNECTING, _R.BACKOFF}) | _RECEIVE_ENDS,
    _R.BACKOFF: frozenset({_R.CONNECTING, _R.FAILED, _R.ABORTED}),
    **dict.fromkeys(_RECEIVE_ENDS, frozenset[ReceiveState]()),
}
RECEIVE_TERMINAL = _RECEIVE_ENDS


# ---------------------------------------------------------------- events


@dataclass(frozen=True, slots=True)
class Computed:
    """P: the first `blocks` blocks of the prompt are computed; may shrink on preemption."""

    blocks: int


@dataclass(frozen=True, slots=True)
class Ahead:
    """P: of the first `blocks` blocks the first `layers` layers are computed, the others will be
    within this step. Void at the next `Computed`."""

    blocks: int
    layers: int


@dataclass(frozen=True, slots=True)
class Ready:
    peer: int
    message: KvReady


@dataclass(frozen=True, slots=True)
class Staged:
    """P: a staging buffer is at hand for what `Stage` asked."""

    transfer: int
    index: int


@dataclass(frozen=True, slots=True)
class PeerLost:
    peer: int


@dataclass(frozen=True, slots=True)
class Cancel:
    """The daemon or the engine gives up."""

    reason: str


@dataclass(frozen=True, slots=True)
class Expire:
    """P: the lease's time has passed."""


@dataclass(frozen=True, slots=True)
class Start:
    """D: begin."""


@dataclass(frozen=True, slots=True)
class Connected:
    """D: an endpoint to P is up; `transfer` is an id never used before. `lent`: P's messages stay
    in its memory, where this D reads them."""

    peer: int
    transfer: int
    lent: bool = False


@dataclass(frozen=True, slots=True)
class ConnectFailed:
    """`final`: it will never work: P answered and will not talk to us (wire version, fingerprint,
    incarnation), or the ticket has no address for us."""

    message: str
    final: bool = False


@dataclass(frozen=True, slots=True)
class Posted:
    """D: receives for slots [0, upto) were posted."""

    transfer: int
    upto: int


@dataclass(frozen=True, slots=True)
class Arrived:
    """D: a slot was answered."""

    transfer: int
    arrival: Arrival


@dataclass(frozen=True, slots=True)
class Tick:
    """Time has passed."""


SendEvent = (
    Computed | Ahead | Ready | KvCredit | Staged | KvAbort | KvReleased | PeerLost | Cancel | Expire
)
ReceiveEvent = (
    Start | Connected | ConnectFailed | Posted | Arrived | KvRefused | PeerLost | Cancel | Tick
)

# ---------------------------------------------------------------- actions


@dataclass(frozen=True, slots=True)
class Tell:
    peer: int
    message: KvReady | KvCredit | KvReleased | KvAbort | KvRefused


@dataclass(frozen=True, slots=True)
class Stage:
    """P: get a staging buffer for this message, then `Staged`."""

    transfer: int
    index: int


@dataclass(frozen=True, slots=True)
class SendData:
    """P: copy the blocks out and send them to this slot. Comes only as the answer to `Staged`."""

    peer: int
    plan: Plan
    index: int
    slot: int


@dataclass(frozen=True, slots=True)
class SendVoid:
    peer: int
    transfer: int
    slot: int


@dataclass(frozen=True, slots=True)
class Connect:
    """D: have an endpoint to P (a new one if the last was lost), then `Connected`."""


@dataclass(frozen=True, slots=True)
class Post:
    """D: post receives for slots [first, upto), as many as staging can spare, then `Posted`. `due`:
    none is open, so that one must be, as soon as there is a buffer."""

    peer: int
    plan: Plan
    first: int
    upto: int
    due: bool


@dataclass(frozen=True, slots=True)
class Ended:
    """The handoff is over on this side; comes once. `trouble`: `digest` or `transfer` when D found
    that nothing sound comes from this P, however often it asks; else empty."""

    error: str = ""
    message: str = ""
    trouble: str = ""


Action = Tell | Stage | SendData | SendVoid | Connect | Post | Ended
