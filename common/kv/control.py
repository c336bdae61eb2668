"""Small messages between P and D on one link: hello first, then the KV protocol.

Theory of operation: every message is one slot of `SLOT_BYTES`, `length (uint32) | xxh3_64 of the
rest | msgpack`, under the tag the receiver chose; a slot that is not what was sent costs the link,
for a bent bit could ask for other blocks or end another transfer. One receive is always posted.
Both sides say `KvHello` and decode nothing else before they have heard it; a side that sees another
wire version or fingerprint says `KvRefused` and closes. Sends that wait are bounded: a peer that
takes nothing is lost.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from dataclasses import dataclass

import msgspec
import numpy as np
import xxhash
from numpy.typing import NDArray

from common.errors import WireError
from common.kv.handoff.desk import Peer
from common.kv.messages import (
    KvAbort,
    KvCredit,
    KvHello,
    KvMapped,
    KvPeer,
    KvPing,
    KvPong,
    KvReady,
    KvRefused,
    KvReleased,
)
from common.kv.pulse import Look, Pulse
from common.kv.ucx import Link
from common.messages import WIRE_VERSION
from common.wire import Decoder, encode

SLOT_BYTES = 2048
PENDING_MAX = 1024
LAST_WORD_S = 0.2
_HEAD = struct.Struct("<IQ")
HEAD_BYTES = _HEAD.size

Heard = KvReady | KvCredit | KvMapped | KvReleased | KvAbort | KvRefused
Slot = NDArray[np.uint8]


def pack(frame: bytes) -> Slot:
    """A slot to send. Raises WireError when the frame does not fit."""
    if len(frame) > SLOT_BYTES - HEAD_BYTES:
        raise WireError(f"a control message of {len(frame)} bytes")
    slot = np.empty(SLOT_BYTES, np.uint8)
    _HEAD.pack_into(slot.data, 0, len(frame), xxhash.xxh3_64_intdigest(frame))
    slot[HEAD_BYTES : HEAD_BYTES + len(frame)] = np.frombuffer(frame, np.uint8)
    return slot


def unpack(slot: Slot) -> bytes:
    """The frame in a received slot. Raises WireError when it is not what was packed."""
    length, digest = _HEAD.unpack_from(slot.data, 0)
    frame = slot[HEAD_BYTES : HEAD_BYTES + length].tobytes()
    if len(frame) != length or xxhash.xxh3_64_intdigest(frame) != digest:
        raise WireError("a control message was damaged on its way")
    return frame


@dataclass(frozen=True, slots=True)
class Identity:
    """Who this worker is to other workers. `rank`: of its tensor parallel ranks, which of them this
    process is."""

    name: str
    incarnation: str
    fingerprint: str
    rank: int = 0


class Channel:
    """Protocol messages over one link. `on_open` gets the peer once, `on_message` what follows,
    `on_closed` a sentence and whether the peer refused us for good; after it nothing comes.
    `staging`: this side's arena; `their_staging`: the peer's, once it said hello. `borrowed`: that
    memory, if this side could map it; `lends`: the peer could map ours."""

    def __init__(
        self,
        peer_id: int,
        link: Link,
        identity: Identity,
        pulse: Pulse,
        *,
        on_open: Callable[[Channel], None],
        on_message: Callable[[Channel, Heard], None],
        on_closed: Callable[[Channel, str, bool], None],
        staging: str = "",
    ) -> None:
        self.id = peer_id
        self.link = link
        self.peer: Peer | None = None
        self.closed = False
        self.their_staging = ""
        self.borrowed: Slot | None = None
        self.lends = False
        self._staging = staging
        self._identity = identity
        self._pulse = pulse
        self._spoke = False
        self._on_open = on_open
        self._on_message = on_message
        self._on_closed = on_closed
        self._decoder: Decoder[KvPeer] = Decoder(KvPeer)
        self._slot = np.zeros(SLOT_BYTES, np.uint8)
        self._pending = 0
        link.on_lost = lambda: self.close("the connection was lost")
        link.open(self._linked)

    def tell(self, message: msgspec.Struct) -> None:
        if self.closed:
            return
        if self._pending >= PENDING_MAX:
            self.close("the peer takes no messages")
            return
        try:
            slot = pack(encode(message))
        except WireError as wrong:
            self.close(wrong.message)
            return
        self._pending += 1
        self.link.send(slot, self.link.send_tag, self._sent)

    def heard_something(self) -> None:
        """Also over the link, past this channel."""
        self._spoke = True

    def feel_pulse(self, now: float) -> None:
        """To be called several times a second while something is awaited from the peer: asks one
        that says nothing, closes on one that does not answer."""
        look, self._spoke = self._pulse.look(now, spoke=self._spoke), False
        if look is Look.ASK:
            self.tell(KvPing())
        elif look is Look.LOST:
            self.close("it does not answer")

    def close(self, why: str, *, refused: bool = False) -> None:
        if self.closed:
            return
        self.closed = True
        self.link.close()
        self._on_closed(self, why, refused)

    def _linked(self, error: str | None) -> None:
        if error is not None:
            self.close(error)
            return
        self._listen()
        own = self._identity
        self.tell(
            KvHello(
                wire_version=WIRE_VERSION,
                name=own.name,
                incarnation=own.incarnation,
                fingerprint=own.fingerprint,
                staging=self._staging,
            )
        )

    def _sent(self, error: str | None) -> None:
        self._pending -= 1
        if error is not None:
            self.close(error)

    def _listen(self) -> None:
        if not self.closed:
            self._slot[:HEAD_BYTES] = 0
            self.link.receive(self._slot, self.link.receive_tag, self._arrived)

    def _arrived(self, error: str | None) -> None:
        if self.closed:
            return
        if error is not None:
            self.close(error)
            return
        try:
            message = self._decoder.decode(unpack(self._slot))
        except WireError as wrong:
            self.close(wrong.message)
            return
        self._listen()
        self._heard(message)

    def _heard(self, message: KvPeer) -> None:
        self.heard_something()
        if isinstance(message, KvHello):
            self._hello(message)
        elif isinstance(message, KvPing):
            self.tell(KvPong())
        elif isinstance(message, KvPong):
            pass
        elif self.peer is not None:
            self._on_message(self, message)
        elif isinstance(message, KvRefused):
            self.close(message.message, refused=True)
        else:
            self.close("the peer spoke before its hello")

    def _hello(self, hello: KvHello) -> None:
        own = self._identity
        wrong = ""
        if hello.wire_version != WIRE_VERSION:
            wrong = f"wire version {hello.wire_version} is not {WIRE_VERSION}"
        elif hello.fingerprint != own.fingerprint:
            wrong = f"fingerprint {hello.fingerprint[:12]} is not {own.fingerprint[:12]}"
        if wrong:
            code = "wire_mismatch"
            self.tell(KvRefused(transfer=0, code=code, message=f"{own.name}: {wrong}"))
            self.link.close_later(LAST_WORD_S)
            self._finish(f"{hello.name}: {wrong}")
            return
        if self.peer is None:
            self.peer = Peer(self.id, hello.name, hello.incarnation)
            self.their_staging = hello.staging
            self._on_open(self)

    def _finish(self, why: str) -> None:
        self.closed = True
        self._on_closed(self, why, True)
