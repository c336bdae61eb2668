"""Control messages between P and D over one link: a hello first, then the messages of handoffs.

Theory of operation: every control message travels in a frame of `CONTROL_FRAME_BYTES`, `length
(uint32) | seal of the body (16 bytes) | body`, where the body is MessagePack, under the tag that
the receiver chose. `authentication.py` says what a seal is, and what the sides say before the first
frame. A frame whose seal is wrong costs the link and is not decoded, because a flipped bit could
ask for other blocks or end another transfer. One receive is always posted. Both sides send
`KvHello` and act on nothing else before they have received it; a side that sees another wire
version or fingerprint answers `KvRefused` and closes. The number of pending sends is bounded: a
peer that takes none is treated as lost.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import msgspec
import numpy as np
from numpy.typing import NDArray

from common.errors import WireError
from common.kv.checksum.definition import Bytes
from common.kv.handoff.parts import WHOLE, Rank
from common.kv.messages import (
    NO_FORM,
    ConnectedPeer,
    KvAbort,
    KvCredit,
    KvForm,
    KvHello,
    KvMapped,
    KvOffer,
    KvPeerMessage,
    KvPing,
    KvPong,
    KvPull,
    KvReady,
    KvRefused,
    KvReleased,
    KvTaken,
)
from common.kv.peers.authentication import (
    SEAL_BYTES,
    FaultSeals,
    FrameSeals,
    Greeting,
    agree,
    key_id,
    same_seal,
)
from common.kv.peers.keepalive import Keepalive, Liveness
from common.kv.transport.ucx import UcxLink
from common.messages import WIRE_VERSION
from common.net.wire import Decoder, encode

CONTROL_FRAME_BYTES = 2048
PENDING_MAX = 1024
"""Control messages that UCX has not sent yet; one more closes the channel."""
REFUSAL_S = 0.2
"""How long a refused link stays open, so that the refusal arrives."""
_HEAD = struct.Struct(f"<I{SEAL_BYTES}s")
HEAD_BYTES = _HEAD.size
NOT_AUTHENTIC = "not_authentic"
"""The reason by which peers are counted that do not prove to be of the fleet."""
ALTERED = "a control message was not what the peer sent"
NOT_PROVED = "it does not prove that it knows the fleet's secret"

HandoffMessage = (
    KvPull | KvReady | KvCredit | KvMapped | KvReleased | KvAbort | KvRefused | KvOffer | KvTaken
)
"""What the rest of the KV layer sees; a channel keeps hellos and pings to itself."""
ControlFrame = NDArray[np.uint8]


def pack_frame(body: bytes, seals: FrameSeals) -> ControlFrame:
    """The next frame to send. Raises WireError when the body does not fit."""
    if len(body) > CONTROL_FRAME_BYTES - HEAD_BYTES:
        raise WireError(f"a control message of {len(body)} bytes")
    frame = np.empty(CONTROL_FRAME_BYTES, np.uint8)
    _HEAD.pack_into(frame.data, 0, len(body), seals.next_sent(body))
    frame[HEAD_BYTES : HEAD_BYTES + len(body)] = np.frombuffer(body, np.uint8)
    return frame


def unpack_frame(frame: ControlFrame, seals: FrameSeals) -> bytes:
    """The body of the next received frame. Raises WireError when it is not what was packed."""
    length, seal = _HEAD.unpack_from(frame.data, 0)
    body = frame[HEAD_BYTES : HEAD_BYTES + length].tobytes()
    if len(body) != length or not same_seal(seals.next_received(body), seal):
        raise WireError("a control message was damaged in transit")
    return body


@dataclass(frozen=True, slots=True)
class WorkerIdentity:
    """This process, as its hello describes it to other workers."""

    name: str
    """The worker's name, as in the fleet file."""
    incarnation: str
    fingerprint: str
    """Equal for workers whose KV is laid out alike."""
    rank: Rank = WHOLE
    """The tensor parallel rank of this process within the worker."""
    secrets_file: str = ""
    """The file of the fleet's secrets, by which workers authenticate each other; empty if they do
    not."""
    form: KvForm = NO_FORM
    direct: bool = False
    """As in `KvHello`."""

    def unlike(self, hello: KvHello) -> str:
        """Why nothing can be handed over between these two; empty if something can."""
        lossy = hello.lossy_meaning
        if self.means_same(hello) or (lossy and lossy == self.form.lossy_meaning):
            return ""
        return f"fingerprint {hello.fingerprint[:12]} is not {self.fingerprint[:12]}"

    def means_same(self, hello: KvHello) -> bool:
        """As `ConnectedPeer.means_same`."""
        same = hello.meaning != "" and hello.meaning == self.form.meaning
        return same or hello.fingerprint == self.fingerprint


Secrets = Callable[[], Sequence[bytes]]
"""The secrets of the fleet that are good now; none where workers do not authenticate each other."""


@dataclass(frozen=True, slots=True)
class ChannelEvents:
    """Whom a channel calls."""

    on_open: Callable[[Channel], None]
    """Called once, after the peer's hello."""
    on_message: Callable[[Channel, HandoffMessage], None]
    """Called for each message after the hello."""
    on_refused: Callable[[str, str], None]
    """Called with the reason, a word, and a sentence when the peer does not prove to be of the
    fleet; `on_closed` follows."""
    on_closed: Callable[[Channel, str, bool], None]
    """The last call: it gets a sentence, and whether the peer refused this worker for good, or this
    worker the peer."""


class Channel:
    """Control messages over one link."""

    def __init__(
        self,
        peer_id: int,
        link: UcxLink,
        identity: WorkerIdentity,
        keepalive: Keepalive,
        events: ChannelEvents,
        *,
        secrets: Secrets,
        segment_name: str = "",
    ) -> None:
        """`segment_name`: this side's shared segment, to be named in the hello."""
        self.id = peer_id
        self.link = link
        #: None until the peer's hello.
        self.peer: ConnectedPeer | None = None
        self.closed = False
        #: The peer's shared segment, as its hello named it; empty if it has none.
        self.remote_segment_name = ""
        #: The peer's shared segment, once this side has mapped it.
        self.remote_segment: Bytes | None = None
        #: Handoffs over it go from card to card, where both ends are on one.
        self.direct = False
        #: The peer has mapped this side's shared segment, so messages may be loaned to it.
        self.loans = False
        self._segment_name = segment_name
        self._identity = identity
        self._keepalive = keepalive
        self._received = False
        self._events = events
        self._decoder: Decoder[KvPeerMessage] = Decoder(KvPeerMessage)
        self._frame = np.zeros(CONTROL_FRAME_BYTES, np.uint8)
        self._pending = 0
        self._secrets = tuple(secrets())
        self._greeting = Greeting.of(self._secrets)
        self._seals: FrameSeals = FaultSeals()
        link.on_lost = lambda: self.close("the connection was lost")
        link.open(self._on_link_open, self._greeting.pack())

    def send(self, message: msgspec.Struct) -> None:
        """Does nothing once closed; closes when the peer takes no messages."""
        if self.closed:
            return
        if self._pending >= PENDING_MAX:
            self.close("the peer takes no messages")
            return
        try:
            frame = pack_frame(encode(message), self._seals)
        except WireError as wrong:
            self.close(wrong.message)
            return
        self._pending += 1
        self.link.send(frame, self.link.send_tag, self._on_sent)

    def data_key(self, transfer: int) -> bytes:
        """As in `FrameSeals`. D chooses the numbers of transfers."""
        return self._seals.data_key(transfer)

    def note_traffic(self) -> None:
        """Something came from the peer, here or as data past this channel."""
        self._received = True

    def check_liveness(self, now: float) -> None:
        """Call several times a second while something is awaited from the peer: pings a silent
        peer, and closes when it does not answer."""
        liveness = self._keepalive.check(now, received=self._received)
        self._received = False
        if liveness is Liveness.PING:
            self.send(KvPing())
        elif liveness is Liveness.LOST:
            self.close("it does not answer")

    def check_secret(self, secrets: Sequence[bytes]) -> None:
        """Closes when the secret that this link was opened with is no longer one of these."""
        if self._seals.key_id and self._seals.key_id not in map(key_id, secrets):
            self.close("the fleet's secret that it was opened with is retired")

    def close(self, why: str, *, refused: bool = False) -> None:
        """Idempotent."""
        if self.closed:
            return
        self.closed = True
        self.link.close()
        self.remote_segment = None  # a channel that is closed is referred to for a while
        self._events.on_closed(self, why, refused)

    def _on_link_open(self, error: str | None) -> None:
        if error is not None:
            self.close(error)
            return
        link, remote = self.link, Greeting.unpack(self.link.remote_greeting)
        try:
            self._seals = agree(
                self._secrets, self._greeting, link.receive_tag, remote, link.send_tag
            )
        except WireError as wrong:
            self._refuse(wrong.message, final=True)
            return
        self._post_receive()
        own = self._identity
        self.send(
            KvHello(
                wire_version=WIRE_VERSION,
                name=own.name,
                incarnation=own.incarnation,
                fingerprint=own.fingerprint,
                staging=self._segment_name,
                meaning=own.form.meaning,
                lossy_meaning=own.form.lossy_meaning,
                direct=own.direct,
            )
        )

    def _on_sent(self, error: str | None) -> None:
        self._pending -= 1
        if error is not None:
            self.close(error)

    def _post_receive(self) -> None:
        if not self.closed:
            self._frame[:HEAD_BYTES] = 0
            self.link.receive(self._frame, self.link.receive_tag, self._on_frame)

    def _on_frame(self, error: str | None) -> None:
        if self.closed:
            return
        if error is not None:
            self.close(error)
            return
        try:
            body = unpack_frame(self._frame, self._seals)
        except WireError as wrong:
            if self._seals.key_id:
                self._refuse(NOT_PROVED if self.peer is None else ALTERED)
            else:
                self.close(wrong.message)
            return
        try:
            message = self._decoder.decode(body)
        except WireError as wrong:
            self.close(wrong.message)
            return
        self._post_receive()
        self._dispatch(message)

    def _dispatch(self, message: KvPeerMessage) -> None:
        self.note_traffic()
        if isinstance(message, KvHello):
            self._on_hello(message)
        elif isinstance(message, KvPing):
            self.send(KvPong())
        elif isinstance(message, KvPong):
            pass
        elif self.peer is not None:
            self._events.on_message(self, message)
        elif isinstance(message, KvRefused):
            self.close(message.message, refused=True)
        else:
            self.close("the peer spoke before its hello")

    def _on_hello(self, hello: KvHello) -> None:
        own = self._identity
        wrong = ""
        if hello.wire_version != WIRE_VERSION:
            wrong = f"wire version {hello.wire_version} is not {WIRE_VERSION}"
        else:
            wrong = own.unlike(hello)
        if wrong:
            code = "wire_mismatch"
            self.send(KvRefused(transfer=0, code=code, message=f"{own.name}: {wrong}"))
            self.link.close_later(REFUSAL_S)
            self._finish(f"{hello.name}: {wrong}", refused=True)
            return
        if self.peer is None:
            alike, means_same = hello.fingerprint == own.fingerprint, own.means_same(hello)
            named = hello.name, hello.incarnation
            self.peer = ConnectedPeer(self.id, *named, alike, means_same, hello.direct)
            self.remote_segment_name = hello.staging
            self._events.on_open(self)

    def _refuse(self, why: str, *, final: bool = False) -> None:
        """Before the hello the link stays open for a moment, so that the peer sees what is wrong.
        `final`: what the peer said of itself is wrong, and not only damaged."""
        self._events.on_refused(NOT_AUTHENTIC, why)
        if self.peer is None:
            self.link.close_later(REFUSAL_S)
            self._finish(why, refused=final)
        else:
            self.close(why)

    def _finish(self, why: str, *, refused: bool) -> None:
        self.closed = True
        self._events.on_closed(self, why, refused)
