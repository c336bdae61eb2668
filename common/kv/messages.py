"""Messages of the KV layer, grouped by sender and receiver; rules and version as in
`common.messages`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import msgspec

from common.blocks import KvGroup
from common.messages import (
    KvCheckpoint,
    KvCounts,
    KvHold,
    KvHolder,
    KvReport,
    KvSource,
    Message,
    StoreAction,
    Ticket,
)

PULL_HASH_BYTES = 32
PULL_HASHES_MAX = 48
"""Hashes in one `KvPull`, which must fit into a control frame."""
PULL_BLOCKS_MAX = 8_192
"""Blocks of one pull."""
OFFER_BLOCKS_MAX = 32
"""Blocks of one `KvOffer`, which must fit into a control frame."""
NAME_BYTES = 8
"""Of a name in `KvOffer.names`; as `common.prefix.HASH_BYTES`."""


class KvForm(msgspec.Struct, frozen=True):
    """The canonical form of an engine's KV; all empty where it has none."""

    meaning: str = ""
    """As `Capacity.kv_meaning`."""
    lossy_meaning: str = ""
    """As `Capacity.kv_lossy_meaning`."""
    element: str = ""
    """As `Capacity.kv_element`."""
    block_bytes: int = 0
    """As `Capacity.kv_canonical_bytes`."""


NO_FORM = KvForm()


# ---------------------------------------------------------------- P and D over UCX (common/kv)


class KvHello(Message, frozen=True):
    """The first message of both sides on a new UCX endpoint. A side that sees another wire version,
    or another fingerprint and other meanings, answers `KvRefused` and closes."""

    wire_version: int
    name: str
    incarnation: str
    fingerprint: str
    staging: str = ""
    """The name of P's shared segment (`staging/shared_segment.py`); empty if it has none."""
    meaning: str = ""
    """As `Capacity.kv_meaning`."""
    lossy_meaning: str = ""
    """As `Capacity.kv_lossy_meaning`."""
    direct: bool = False
    """Its KV is on a card, from which or to which UCX may read or write payloads."""


@dataclass(frozen=True, slots=True)
class ConnectedPeer:
    """The worker at the other end of an endpoint, as its KvHello named it. Never on the wire."""

    id: int
    """The id of its channel, unique in this process."""
    name: str
    incarnation: str
    alike: bool = True
    """Whether it has this worker's fingerprint."""
    means_same: bool = True
    """Whether its KV means the same, precision included."""
    direct: bool = False
    """As in its hello."""

    def allows(self, ticket: Ticket) -> bool:
        """Whether what travels by this ticket is of use at both ends."""
        return self.alike or (ticket.canonical and (self.means_same or bool(ticket.element)))


class KvReady(Message, frozen=True):
    """D to P: send blocks of the prompt of this ticket. P answers every granted slot, with a
    message of the transfer or a void one, or the whole request with `KvRefused`."""

    secret: bytes
    """The ticket's."""
    request_id: str
    attempt: int
    transfer: int
    """An id that D never used before; a retry has a new one."""
    first_block: int
    """The transfer moves blocks [first_block, first_block + blocks) of the prompt."""
    blocks: int
    message_blocks: int
    """Blocks of one message (`common.kv.plan`)."""
    granted: int
    """D has posted receives for slots [0, granted), each for any one message of the transfer."""
    layer_groups: int = 1
    """The layers of a run of blocks travel in so many messages."""
    patience_ms: float = 0.0
    """How long D waits from now on. P keeps this request so long if its ticket has not come yet; 0
    means as long as a lease."""
    accepts: tuple[str, ...] = ()
    """Encodings that P may use for payloads (`fp8`). P chooses for each transfer; each message's
    header names its encoding."""
    direct: bool = False
    """D has posted receives for headers alone. P sends the payload of each message from its card,
    and D receives it to its own. Only for a P whose hello says `direct`."""


class KvPull(Message, frozen=True):
    """Any worker to one with a store, right before `KvReady`, in place of a ticket: the transfer is
    of these blocks of the prompt. The hashes come in pieces, in order. With the last the holder
    looks them up; if it lacks some, it answers `KvRefused`."""

    secret: bytes
    """Random bytes for this pull alone, which stand for a ticket's."""
    request_id: str
    attempt: int
    transfer: int
    total: int
    """Blocks over all pieces."""
    hashes: bytes
    """The engine's own hashes of the next blocks, `PULL_HASH_BYTES` each."""


class KvCredit(Message, frozen=True):
    """D to P: more slots of a transfer have a receive posted, or loaned messages have been read."""

    transfer: int
    granted: int
    """Slots [0, granted) have a receive posted."""
    taken: tuple[int, ...] = ()
    """Offsets of loaned messages that D has read."""


class KvMapped(Message, frozen=True):
    """D to P: D has mapped P's shared segment. From now on P may loan a message, that is, answer a
    slot with an offset in the segment. A loan ends with its transfer at the latest."""


class KvReleased(Message, frozen=True):
    """D to P: all blocks are verified; P frees the lease."""

    transfer: int


class KvAbort(Message, frozen=True):
    """D to P: give this transfer up. P answers every open slot with a void message."""

    transfer: int
    reason: str


class KvRefused(Message, frozen=True):
    """P to D: there is no such ticket, it is not for this D, or it has expired. The transfer is
    over, and every granted slot has been or will be answered by a void message."""

    transfer: int
    code: str
    message: str
    held: int = 0
    """How many leading blocks of a pull the store has, where it lacks others."""


class KvOffer(Message, frozen=True):
    """A worker with a store to another holder of its fingerprint: it has these blocks; have them,
    too. The holder pulls those that it lacks and has room for, and answers once with `KvTaken`."""

    offer: int
    """A number that the sender never used before."""
    kv_address: str
    """The sender's listener, out of whose store they are pulled."""
    hashes: bytes
    """The engine's own, `PULL_HASH_BYTES` each, at most `OFFER_BLOCKS_MAX`."""
    names: bytes = b""
    """By which routers know these blocks (`common.prefix`), `NAME_BYTES` each; empty: they have no
    such names."""
    owner: bytes = b""
    """Whose blocks they are (`common.kv.store.recency.owner_of`)."""
    goes_on: bool = False
    """Whether the stream is to go on at the holder."""


class KvTaken(Message, frozen=True):
    """The answer to `KvOffer`, once the holder has pulled what it wanted or could not."""

    offer: int
    blocks: int
    """How many leading blocks of the offer its store has now."""


class KvPing(Message, frozen=True):
    """Either side, while it awaits something from a peer that has been silent for a while. Answered
    by `KvPong` at once. A stopped process and a network that swallows packets close no
    connection."""


class KvPong(Message, frozen=True):
    """The answer to `KvPing`."""


# ---------------------------------------------------------------- worker daemon <-> its KV thread


class KvRelease(Message, frozen=True):
    """Daemon to its engine's KV thread: the attempt is over; free what it holds. Idempotent, no
    answer."""

    request_id: str
    attempt: int
    reason: str


class KvKeep(Message, frozen=True):
    """Daemon to its engine's KV thread: this stream of D has left, and its KV is wanted
    elsewhere. Answered by one `KvDone`, side `send`, when it is freed."""

    request_id: str
    attempt: int


class KvHandOver(Message, frozen=True):
    """Daemon to its engine's KV thread: what is kept of a stream that left this D is for the D of
    this ticket. No answer."""

    ticket: Ticket
    kept_attempt: int
    """The attempt of the request that was aborted here with its KV kept."""


class KvCopyAhead(Message, frozen=True):
    """Daemon to its engine's KV thread: as `CopyAhead`. Where there is a holder, answered by one
    `KvDone`, side `copy`, unless the stream ends before."""

    request_id: str
    attempt: int
    holder: KvHolder | None = None
    lag_blocks: int = 0


class KvConnect(Message, frozen=True):
    """Daemon of a D to its engine's KV thread: connect to this P before a handoff needs it, because
    a first UCX connection costs 0.1-0.3 s. Idempotent, no answer."""

    kv_address: str


class KvOrder(Message, frozen=True):
    """Daemon to its engine's KV thread, on an operator's order: keep these blocks of the store,
    keep them no longer, or drop them. Idempotent, no answer."""

    action: StoreAction
    ends: bytes
    """The last `HASH_END_BYTES` of the engine's hash of each block, in the order of their
    prompts."""


class KvPrefetch(Message, frozen=True):
    """Daemon to its engine's KV thread: a request that will probably come here waits in the queue
    of the router; get these blocks of its prompt to the memory of the store. No answer. `KvRelease`
    takes it back."""

    request_id: str
    attempt: int
    hashes: bytes
    """As in `KvOffer`, as are the names, of which every block has one. What the engine has of the
    prompt is left out."""
    names: bytes
    source: KvSource | None = None
    """Out of whose store they may be pulled."""
    source_blocks: int = 0
    """How many of the blocks that store has, as far as the router knows."""
    owner: bytes = b""
    """As in `KvOffer`."""


class KvArrived(Message, frozen=True):
    """Daemon to its engine's KV thread: the request of a `KvPrefetch` is here now. No answer."""

    request_id: str
    attempt: int


class KvListening(Message, frozen=True):
    """KV thread to daemon, once: the UCX listener is up."""

    kv_address: str = ""
    """`host:port`."""
    groups: tuple[KvGroup, ...] = ()
    """The engine's KV cache groups."""
    block_bytes: int = 0
    """One block of this rank, all layers of a group."""
    pull_blocks: int = 0
    """How many blocks its store holds that others may pull."""
    layers: int = 0
    """Into which a block of this rank is cut on the wire."""
    disk_blocks: int = 0
    """How many blocks the disk below its store holds, which others may pull, too."""
    form: KvForm = NO_FORM


class KvCopied(Message, frozen=True):
    """KV thread to daemon: its store has blocks now that another worker offered, or that were
    prefetched, or what is on its disk has changed. Told once of each; what goes again of the
    memory, the engine's events tell."""

    hashes: bytes
    """As in `KvOffer`, as are the names, of which every block has one."""
    names: bytes
    gone: bytes = b""
    """The hashes of blocks that the disk holds no more."""
    disk: bool = False
    """Whether it is about the disk."""
    ahead: bool = False
    """Whether a stream that needs blocks of the store is to go on here: an engine without work is
    to make a step, which begins to load them."""


class KvDone(Message, frozen=True):
    """KV thread to daemon: one handoff ended on this side, or a stream was copied ahead of its
    move."""

    request_id: str
    attempt: int
    side: Literal["send", "receive", "copy"]
    report: KvReport
    error: str = ""
    """A `Code`, or empty."""
    message: str = ""
    trouble: str = ""
    """`digest` or `transfer` when D gave up on this P (see `PairTrouble`); else empty."""
    peer: str = ""
    """The name of the worker on the other side."""
    peer_incarnation: str = ""
    held: int = 0
    """As in `KvRefused`; of side `copy`, as in `CopiedAhead`."""
    choice: str = ""
    """On P: why it compressed or not, when the choice differs from that of the handoff before to
    the same D."""


class KvStatus(Message, frozen=True):
    """KV thread to daemon, every 500 ms while it holds something or has counted something new."""

    counts: KvCounts
    holds: tuple[KvHold, ...] = ()
    """The `KV_HOLDS_MAX` oldest of its holds."""
    holds_total: int = 0
    lanes: dict[str, tuple[str, ...]] = msgspec.field(default_factory=dict)
    """What UCX chose for the connection to each P, by its name: `transport/device`."""
    linked: tuple[str, ...] = ()
    """The addresses of P that a connection is open to."""
    checkpoints: tuple[KvCheckpoint, ...] = ()
    """Streams whose blocks another holder gets, the latest 256 at most."""


KvPeerMessage = (
    KvHello
    | KvPull
    | KvReady
    | KvCredit
    | KvMapped
    | KvReleased
    | KvAbort
    | KvRefused
    | KvOffer
    | KvTaken
    | KvPing
    | KvPong
)
DaemonToKv = (
    KvRelease | KvConnect | KvKeep | KvHandOver | KvCopyAhead | KvOrder | KvPrefetch | KvArrived
)
KvToDaemon = KvListening | KvDone | KvStatus | KvCopied
