"""Messages of the KV plane, grouped by who speaks; rules and version as in `common.messages`."""

from __future__ import annotations

from typing import Literal

import msgspec

from common.messages import KvCounts, KvHold, KvReport, Message

# ---------------------------------------------------------------- P and D over UCX (common/kv)


class KvHello(Message, frozen=True):
    """Both sides of a new UCX endpoint, first. A side that sees another wire version or fingerprint
    answers `KvRefused` and closes. `staging`: P's arena (`common.kv.arena`); empty = none."""

    wire_version: int
    name: str
    incarnation: str
    fingerprint: str
    staging: str = ""


class KvReady(Message, frozen=True):
    """D to P: I have blocks for `secret`'s prompt and want blocks [first_block, first_block+blocks)
    of it under `transfer`, an id new for this try, cut as `common.kv.plan` says: `message_blocks`
    blocks a message, their layers in `layer_groups` messages. Slots [0, granted) have a receive
    posted, each for any one message. `patience_ms`: how long D goes on waiting, and P keeps this
    request if its ticket has not come yet (0: as long as a lease). `accepts`: what P may do to a
    message's payload (`fp8`); P chooses, and the message's header says what it did."""

    secret: bytes
    request_id: str
    attempt: int
    transfer: int
    first_block: int
    blocks: int
    message_blocks: int
    granted: int
    layer_groups: int = 1
    patience_ms: float = 0.0
    accepts: tuple[str, ...] = ()


class KvCredit(Message, frozen=True):
    """D to P: slots [0, granted) of this transfer now have a receive posted. `taken`: offsets of
    lent messages that D has read."""

    transfer: int
    granted: int
    taken: tuple[int, ...] = ()


class KvMapped(Message, frozen=True):
    """D to P: I can read your arena. From now on P may lend a message, that is, answer a slot with
    its offset there. Messages of a transfer that has ended are not lent any more."""


class KvReleased(Message, frozen=True):
    """D to P: all blocks verified; free the lease."""

    transfer: int


class KvAbort(Message, frozen=True):
    """D to P: give up this transfer; P answers every open slot with a void message."""

    transfer: int
    reason: str


class KvRefused(Message, frozen=True):
    """P to D: no such ticket, or not for you, or expired. The transfer is over; every granted
    slot has been or will be answered by a void message."""

    transfer: int
    code: str
    message: str


class KvPing(Message, frozen=True):
    """D to P, when D waits for something and P has said nothing for a while: are you there? A
    stopped process and a network that swallows packets close no connection. Answered by `KvPong`
    at once."""


class KvPong(Message, frozen=True):
    """P to D: I am."""


# ---------------------------------------------------------------- worker daemon <-> its KV thread


class KvRelease(Message, frozen=True):
    """Daemon to its engine's KV thread: the attempt is over, free whatever it pins. Idempotent."""

    request_id: str
    attempt: int
    reason: str


class KvConnect(Message, frozen=True):
    """Daemon of a D to its engine's KV thread: have a connection to the P at `kv_address` before a
    handoff needs one (a first UCX connection costs 0.1-0.3 s). Idempotent; no answer."""

    kv_address: str


class KvListening(Message, frozen=True):
    """KV thread to daemon, once: the UCX listener is up at `host:port`."""

    kv_address: str


class KvDone(Message, frozen=True):
    """KV thread to daemon: one handoff ended on this side. `error` is a `Code` or empty. `trouble`:
    `digest` or `transfer` when D gave up on this P (see `PairTrouble`). `peer`: the other side.
    `choice`: why P compressed or not, when it decides otherwise than for this peer before."""

    request_id: str
    attempt: int
    side: Literal["send", "receive"]
    report: KvReport
    error: str = ""
    message: str = ""
    trouble: str = ""
    peer: str = ""
    peer_incarnation: str = ""
    choice: str = ""


class KvStatus(Message, frozen=True):
    """KV thread to daemon, every 500 ms while it holds something or counted something new: its
    counts, and the `KV_HOLDS_MAX` oldest of its `holds_total` holds. `lanes`: by P's name, what UCX
    chose for the connection to it (`transport/device`). `linked`: addresses of the P's that a
    connection stands to."""

    counts: KvCounts
    holds: tuple[KvHold, ...] = ()
    holds_total: int = 0
    lanes: dict[str, tuple[str, ...]] = msgspec.field(default_factory=dict)
    linked: tuple[str, ...] = ()


KvPeer = (
    KvHello | KvReady | KvCredit | KvMapped | KvReleased | KvAbort | KvRefused | KvPing | KvPong
)
DaemonToKv = KvRelease | KvConnect
KvToDaemon = KvListening | KvDone | KvStatus
