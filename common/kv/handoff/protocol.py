"""The vocabulary of a handoff: states, transition tables, events and actions of both ends.

Theory of operation: `handle` is the sole mutator of its state and returns actions in the order in
which the shell must do them; every action that takes time comes back as an event. A *transfer* is
one try of D to get blocks, with an id that D never used before. A *slot* is a receive that D has
posted for it, for any one message of the transfer. D grants a slot only after posting it, and P
answers every granted slot once, with a message not sent yet or with a void one, also after the
handoff has ended, so that no posted receive is left behind. The engine of D is given verified
blocks only. A message of an older transfer, or one that was verified before, is never written to
blocks. A retry asks only for what is not verified yet.

    P: OFFERED -> SENDING -> RELEASED          D: CONNECTING -> WAITING -> RECEIVING -> DONE
       any -> CANCELLED | ABORTED | EXPIRED       any -> BACKOFF -> CONNECTING
                                                  any -> FAILED | ABORTED
"""

from __future__ import annotations

import enum
from dataclasses import dataclass

from common.identity import AttemptKey
from common.kv.checksum.header import Arrival
from common.kv.messages import (
    ConnectedPeer,
    KvAbort,
    KvCredit,
    KvPull,
    KvReady,
    KvRefused,
    KvReleased,
)
from common.kv.plan import TransferPlan
from common.messages import Ticket


class SendState(enum.Enum):
    """P's end of a ticket."""

    OFFERED = "offered"
    """P holds or computes the prompt's KV, and no D is being served."""
    SENDING = "sending"
    RELEASED = "released"
    """D has verified all that it wanted."""
    CANCELLED = "cancelled"
    """P's daemon or engine gave up."""
    ABORTED = "aborted"
    """D gave up."""
    EXPIRED = "expired"
    """The lease ran out."""


class ReceiveState(enum.Enum):
    """D's end of a ticket."""

    CONNECTING = "connecting"
    WAITING = "waiting"
    """A transfer is asked for and nothing of it has come."""
    RECEIVING = "receiving"
    BACKOFF = "backoff"
    """D waits before it connects again."""
    DONE = "done"
    FAILED = "failed"
    ABORTED = "aborted"
    """D's daemon or engine gave up."""


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
    """P: the first `blocks` blocks of the prompt hold KV. A preemption makes them fewer."""

    blocks: int


@dataclass(frozen=True, slots=True)
class LayersComputed:
    """P: the first `layers` layers of the first `blocks` blocks hold KV; the step in progress will
    compute the others. Valid until the next `Computed`."""

    blocks: int
    layers: int


@dataclass(frozen=True, slots=True)
class Ready:
    """P: a D that this ticket serves asks for a transfer."""

    peer: int
    message: KvReady


@dataclass(frozen=True, slots=True)
class Staged:
    """P: the staging buffer that `Stage` asked for is there."""

    transfer: int
    index: int


@dataclass(frozen=True, slots=True)
class PeerLost:
    """The connection with this id is gone."""

    peer: int


@dataclass(frozen=True, slots=True)
class Cancel:
    """The daemon or the engine gives up."""

    reason: str


@dataclass(frozen=True, slots=True)
class Expire:
    """P: the lease has run out."""


@dataclass(frozen=True, slots=True)
class Start:
    """D: begin."""


@dataclass(frozen=True, slots=True)
class Connected:
    """D: a connection to P is open."""

    peer: int
    transfer: int
    """An id never used before, for the transfer that begins now."""
    loan: bool = False
    """P loans its messages to this D (`staging/loans.py`)."""
    direct: bool = False
    """P's KV and this D's are on cards, and this connection goes from one to the other."""


@dataclass(frozen=True, slots=True)
class ConnectFailed:
    """D: no connection to P could be opened."""

    message: str
    final: bool = False
    """It will never work: P refused us (wire version, fingerprint, incarnation), or the ticket has
    no address for this rank."""


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


@dataclass(frozen=True, slots=True)
class Offer:
    """P: the prompt of this ticket, so many blocks, is or will be computed here."""

    ticket: Ticket
    blocks: int


@dataclass(frozen=True, slots=True)
class HandOver:
    """P: what was offered for `kept`, to nobody yet, is offered under this ticket instead."""

    kept: AttemptKey
    ticket: Ticket
    blocks: int
    """As this ticket counts them."""


@dataclass(frozen=True, slots=True)
class Release:
    """P: the handoff of this attempt is over. One that was not offered is remembered, so that its
    offer will be refused."""

    key: AttemptKey
    reason: str


@dataclass(frozen=True, slots=True)
class ForSender:
    """P: an event of the sender of one attempt; ignored if there is none."""

    key: AttemptKey
    event: Computed | LayersComputed | Staged


@dataclass(frozen=True, slots=True)
class FromPeer:
    """P: a D has sent this message."""

    peer: ConnectedPeer
    message: KvReady | KvCredit | KvReleased | KvAbort


TicketEvent = Offer | HandOver | Release | ForSender | FromPeer | PeerLost | Tick
"""Events of the ticket table, which makes those of each sender of them."""
SendEvent = (
    Computed
    | LayersComputed
    | Ready
    | KvCredit
    | Staged
    | KvAbort
    | KvReleased
    | PeerLost
    | Cancel
    | Expire
)
ReceiveEvent = (
    Start | Connected | ConnectFailed | Posted | Arrived | KvRefused | PeerLost | Cancel | Tick
)

# ---------------------------------------------------------------- actions


@dataclass(frozen=True, slots=True)
class SendControl:
    """Send a control message to this peer, if its connection still stands."""

    peer: int
    message: KvPull | KvReady | KvCredit | KvReleased | KvAbort | KvRefused


@dataclass(frozen=True, slots=True)
class Stage:
    """P: get a staging buffer for this message, then `Staged`."""

    transfer: int
    index: int
    direct: bool = False
    """As in `TransferPlan`."""


@dataclass(frozen=True, slots=True)
class SendData:
    """P: copy the blocks out and send them to this slot. Comes only as the answer to `Staged`."""

    peer: int
    plan: TransferPlan
    index: int
    slot: int


@dataclass(frozen=True, slots=True)
class SendVoid:
    """P: answer this slot without data."""

    peer: int
    transfer: int
    slot: int


@dataclass(frozen=True, slots=True)
class Connect:
    """D: open a connection to P, or a new one if the last was lost, then `Connected`."""


@dataclass(frozen=True, slots=True)
class Post:
    """D: post receives for slots [first, upto), as many as staging can spare, then `Posted`."""

    peer: int
    plan: TransferPlan
    first: int
    upto: int
    due: bool
    """No receive is open, so one must be posted as soon as there is a buffer."""


@dataclass(frozen=True, slots=True)
class Ended:
    """The handoff is over on this side; comes once."""

    error: str = ""
    """A `Code`, or empty."""
    message: str = ""
    trouble: str = ""
    """`digest` or `transfer` when D found that nothing sound comes from this P, however often it
    asks; else empty."""
    held: int = 0
    """As in `KvRefused`."""


Action = SendControl | Stage | SendData | SendVoid | Connect | Post | Ended
